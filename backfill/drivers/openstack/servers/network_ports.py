"""The network port of an instance: one per name, with the fixed address that Slurm knows."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from backfill.core.model.fleet import InstanceSpec
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.errors import FOREIGN, acted_is_unknown, translate
from backfill.drivers.openstack.api.states import cluster_tag
from backfill.ports.errors import AlreadyThereError, BusyError, DriverError, NotFoundError, RefusedError

Port = dict[str, Any]


def name_of(cluster: str, instance: str) -> str:
    """Return the name of an instance's port."""
    return f"{cluster_tag(cluster)}.{instance}"


def ensure(cloud: Cloud, spec: InstanceSpec) -> str:
    """Return the id of a free port with the instance's address; make one when there is none."""
    network = network_of(cloud, spec)
    address = spec.address.split("/")[0]
    port = _find(cloud, spec.name)
    elsewhere = port is not None and (
        address not in _addresses(port) or str(port.get("network_id", network)) != network
    )
    if port is not None and (elsewhere or port.get("device_id")) and not _owner(cloud, port):
        _delete(cloud, port, spec.name)
        port = None
    if port is None:
        port = _make(cloud, spec.name, network, address)
    _check_free(cloud, port, spec.name)
    return str(port["id"])


def network_of(cloud: Cloud, spec: InstanceSpec) -> str:
    """Return the id of the network that an instance is to be in. RefusedError: there is none of that name."""
    shape = cloud.config.shape
    name = shape.networks.get(spec.network) if spec.network else shape.network
    if name is None:
        known = ", ".join(shape.networks) or "none"
        raise RefusedError(spec.name, f"there is no network {spec.network}", f"known networks: {known}")
    return cloud.id_of("network", "network", name, spec.name)


def _owner(cloud: Cloud, port: Port) -> str:
    """Return the id of the living server that has it, or empty.

    It may name one that is gone: Nova gives ports back late, or never.
    """
    owner = str(port.get("device_id") or "")
    return owner if owner and cloud.board.refresh(owner, str(port["name"])) is not None else ""


def _check_free(cloud: Cloud, port: Port, subject: str) -> None:
    """Raise BusyError if a living server has it: without its port that would be cut off at work."""
    if owner := _owner(cloud, port):
        raise BusyError(
            subject,
            f"its port {port['name']} still belongs to server {owner}",
            "delete that server, or take the port away from it",
        )


def remove(cloud: Cloud, name: str) -> None:
    """Delete the port of an instance that is gone; BusyError if a living server has it after all."""
    port = _find(cloud, name)
    if port is not None:
        _check_free(cloud, port, name)
        _delete(cloud, port, name)


def remove_unused(cloud: Cloud, name: str) -> None:
    """Delete the port of an instance that was refused, unless a server has it after all."""
    port = _find(cloud, name)
    if port is not None and not port.get("device_id"):
        _delete(cloud, port, name)


def _delete(cloud: Cloud, port: Port, subject: str) -> None:
    """Gone already is fine: a deletion whose answer was lost is sent once more."""
    with suppress(NotFoundError):
        cloud.link.delete("network", f"/ports/{port['id']}", subject)


def _find(cloud: Cloud, name: str) -> Port | None:
    # An administrator sees those of all projects, where another cluster may have our name.
    query = {"name": name_of(cloud.config.cluster, name), "project_id": cloud.link.project_id(name)}
    found: list[Port] = cloud.link.get("network", "/ports", name, **query).entries("ports")
    return found[0] if found else None


def _make(cloud: Cloud, name: str, network: str, address: str) -> Port:
    """Create it once. The address is the guard: Neutron gives it to one port only."""
    port: Port = {
        "name": name_of(cloud.config.cluster, name),
        "network_id": network,
        "fixed_ips": [{"ip_address": address}],
        "binding:vnic_type": cloud.config.shape.vnic_type,
    }
    groups = cloud.groups_of_ports(network, name)
    if groups:  # the project's default lets nobody in who is not in it
        port["security_groups"] = groups
    try:
        answer = cloud.link.post("network", "/ports", name, {"port": port})
    except FOREIGN as error:
        problem: DriverError = translate(error, name, cloud.link.cloud)
        there = _find(cloud, name) if acted_is_unknown(error) else None
        if there is not None:
            return there
        if isinstance(problem, BusyError):
            raise AlreadyThereError(
                name,
                f"its address {address} is in use in the network: {problem.problem}",
                "choose a range in instances.addresses that is free",
            ) from error
        raise problem from error
    made: Port = answer.body["port"]
    return made


def _addresses(port: Port) -> list[str]:
    return [str(ip.get("ip_address")) for ip in port.get("fixed_ips", [])]
