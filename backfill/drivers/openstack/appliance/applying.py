"""Makes the resources of an appliance without Heat, each found by its name first."""

from __future__ import annotations

import base64
import time
from contextlib import suppress
from typing import Any

from backfill.drivers.openstack.api.errors import FOREIGN, translate
from backfill.drivers.openstack.api.link import Answer, ApiLink
from backfill.drivers.openstack.api.naming import id_of
from backfill.drivers.openstack.api.states import appliance_name, fault_of
from backfill.drivers.openstack.appliance.template import (
    Appliance,
    Properties,
    Resource,
    every_resource,
    resources,
)
from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError, UnreachableError

_GROUP, _ROUTER = "OS::Neutron::SecurityGroup", "OS::Neutron::Router"
_PLUG, _SERVER = "OS::Neutron::RouterInterface", "OS::Nova::Server"
_KEY, _FLOATING = "OS::Nova::KeyPair", "OS::Neutron::FloatingIP"
_OURS, _MARK = "made by backfill cloud apply", "backfill_controller"
_PLACES = {
    "OS::Neutron::Net": ("network", "/networks", "network"),
    "OS::Neutron::Subnet": ("network", "/subnets", "subnet"),
    _GROUP: ("network", "/security-groups", "security_group"),
    "OS::Neutron::Port": ("network", "/ports", "port"),
    _ROUTER: ("network", "/routers", "router"),
    _FLOATING: ("network", "/floatingips", "floatingip"),
    _KEY: ("compute", "/os-keypairs", "keypair"),
    _SERVER: ("compute", "/servers/detail", "server"),
}
Found = dict[str, Properties | None]  # resources that are there, by our name for them


def apply(link: ApiLink, wanted: Appliance, within_s: float) -> list[tuple[str, str, bool]]:
    """Make what is missing: (resource, id, whether it was made now). Twice is fine.

    What the cloud does not know, or has otherwise, is told before anything is made. Returns when
    the controller runs, UnreachableError if not `within_s`.
    """
    _check_names(link, wanted)
    there = _look(link, resources(wanted))
    for resource in resources(wanted):
        _check(resource, there.get(resource.name), there["network"])
    ids: dict[str, str] = {}
    told = []
    for resource in resources(wanted):
        if resource.kind == _PLUG:
            made = _plug(link, ids)
            told.append((resource.name, ids["router"], made))
            continue
        found = there[resource.name]
        ids[resource.name] = str(found["id"]) if found else _make(link, resource, ids)
        if resource.kind == _GROUP:
            _ensure_rules(link, resource, ids[resource.name])
        told.append((resource.name, ids[resource.name], not found))
    _await_controller(link, wanted, ids["controller"], within_s)
    return told


def remove(link: ApiLink, wanted: Appliance) -> list[str]:
    """Delete what `apply` made, the last first; what is not there is no mistake.

    BusyError, and nothing is deleted, while anything else has a port in the network.
    """
    all_of_it = every_resource(wanted)
    there = {name: _made_by_us(found) for name, found in _look(link, all_of_it).items()}
    network = there["network"]
    if network:
        _check_empty(link, str(network["id"]), wanted)
    gone = []
    for resource in reversed(all_of_it):
        if resource.kind == _PLUG:
            _unplug(link, there)
            continue
        found = there[resource.name]
        if found:
            service, path, _ = _PLACES[resource.kind]
            path = path.removesuffix("/detail")
            with suppress(NotFoundError):  # a deletion whose answer was lost is sent once more
                link.delete(service, f"{path}/{found['id']}", resource.name)
            gone.append(resource.name)
            _await_gone(link, resource, there)
    return gone


# --- before anything is done -------------------------------------------------------------------
def _check_names(link: ApiLink, wanted: Appliance) -> None:
    id_of(link, "image", "image", wanted.image, wanted.name)
    id_of(link, "compute", "flavor", wanted.flavour, wanted.name)
    if wanted.external:
        outside = id_of(link, "network", "network", wanted.external, wanted.name)
        found = link.get("network", f"/networks/{outside}", wanted.external).body["network"]
        if not found["router:external"]:
            raise RefusedError(
                wanted.external,
                f"this network of cloud {link.cloud} leads nowhere outside",
                "name one that does: openstack network list --external",
            )
    if wanted.key:
        try:
            link.get("compute", f"/os-keypairs/{wanted.key}", wanted.key)
        except NotFoundError as error:
            raise RefusedError(
                wanted.key,
                f"cloud {link.cloud} has no key pair of this name for this user",
                "openstack keypair create",
            ) from error


def _check(resource: Resource, found: Properties | None, network: Properties | None) -> None:
    """RefusedError if what is there under this name is not what is wanted, or elsewhere."""
    if not found:
        return
    remedy = "choose another name, or remove it"
    if _made_by_us(found):
        remedy = "backfill cloud remove takes it away"
    wanted = resource.properties
    if resource.kind == _KEY and _material(wanted) != _material(found):
        raise RefusedError(str(found["name"]), "a key pair of this name is there, with another key", remedy)
    pairs = [(wanted["cidr"], [found.get("cidr")])] if "cidr" in wanted else []
    has = [ip["ip_address"] for ip in found.get("fixed_ips") or []]
    pairs += [(ip["ip_address"], has) for ip in wanted.get("fixed_ips", [])]
    for wants, seen in pairs:
        if wants not in seen:
            raise RefusedError(
                str(found["name"]),
                f"a {resource.name} of this name is there with "
                f"{' and '.join(map(str, seen)) or 'no address'}, not {wants}",
                remedy,
            )
    if "network" in wanted and found.get("network_id") != (network or {}).get("id"):
        raise RefusedError(
            str(found["name"]), f"a {resource.name} of this name is in another network", remedy
        )
    if found.get("status") == "ERROR" and resource.kind == _SERVER:
        why = fault_of(found) or "it does not say why"
        raise RefusedError(str(found["name"]), f"it is there, in ERROR: {why}", remedy)


def _check_empty(link: ApiLink, network: str, wanted: Appliance) -> None:
    query = {"network_id": network}
    ports = link.get("network", "/ports", wanted.network, **query).entries("ports")
    own = f"{appliance_name(wanted.name)}-controller"
    others = [
        port["name"] or port["id"]
        for port in ports
        if port["name"] != own and not str(port.get("device_owner")).startswith("network:")
    ]
    if others:
        raise BusyError(
            wanted.network,
            f"ports of others are still in this network, such as {others[0]}",
            "let the instances go first: backfill reclaim HOST --keep 0",
        )


# --- one resource ------------------------------------------------------------------------------
def _await_gone(link: ApiLink, resource: Resource, there: Found) -> None:
    for attempt in range(40):
        if not _find(link, resource, there):
            return
        link.pause_before(attempt)
    raise DriverError(resource.name, "it is being deleted and still there", "try again later")


def _made_by_us(found: Properties | None) -> Properties | None:
    """None as well for what others have made under this name."""
    if not found:
        return None
    marked = found.get("description") == _OURS or _MARK in found.get("metadata", {})
    return found if marked or str(found.get("public_key", "")).endswith(_OURS) else None


def _material(pair: Properties) -> list[str]:
    """Kind and key without the comment, which has our mark."""
    return str(pair["public_key"]).split()[:2]


def _await_controller(link: ApiLink, wanted: Appliance, server_id: str, within_s: float) -> None:
    (resource,) = (r for r in resources(wanted) if r.kind == _SERVER)
    deadline_s, attempt = time.monotonic() + within_s, 0
    while True:
        server = link.get("compute", f"/servers/{server_id}", resource.name).body["server"]
        _check(resource, server, None)
        if server["status"] != "BUILD":
            return
        if time.monotonic() > deadline_s:
            raise UnreachableError(
                str(server["name"]),
                f"Nova has not built it within {within_s:g} s",
                "the same command again goes on waiting",
            )
        link.pause_before(attempt)
        attempt += 1


def _look(link: ApiLink, all_of_it: list[Resource]) -> Found:
    there: Found = {}
    for resource in all_of_it:
        if resource.kind in _PLACES:
            there[resource.name] = _find(link, resource, there)
    return there


def _find(link: ApiLink, resource: Resource, there: Found) -> Properties | None:
    """Find the project's own resource of this name; RefusedError if there are several."""
    if resource.kind == _KEY:
        return _find_key(link, resource)
    service, path, key = _PLACES[resource.kind]
    query = _query(link, resource, there)
    if query is None:
        return None
    try:
        listed = link.get(service, path, resource.name, **query).entries(f"{key}s")
    except NotFoundError as error:
        if resource.kind not in (_ROUTER, _FLOATING):
            raise
        asked = resource.properties
        if not (asked.get("external_gateway_info") or asked.get("floating_network")):
            return None
        raise RefusedError(
            resource.name, f"cloud {link.cloud} makes no routers", "leave out --external"
        ) from error
    if len(listed) > 1:
        name = str(resource.properties.get("name", resource.name))
        raise RefusedError(name, f"the project has {len(listed)} of this name", "rename the others")
    return dict(listed[0]) if listed else None


def _query(link: ApiLink, resource: Resource, there: Found) -> dict[str, str] | None:
    """Write how a resource is found; None: it cannot be there."""
    if resource.kind == _SERVER:
        return {"name": f"^{resource.properties['name']}$"}
    mine = {"project_id": link.project_id(resource.name)}
    if resource.kind != _FLOATING:
        return {**mine, "name": str(resource.properties["name"])}
    port = there["controller_port"]  # a floating address has no name
    return {**mine, "port_id": str(port["id"])} if port else None


def _find_key(link: ApiLink, resource: Resource) -> Properties | None:
    """Find the user's own key pair: they belong to users, and their names are their ids."""
    service, path, key = _PLACES[_KEY]
    listed = (entry[key] for entry in link.get(service, path, resource.name).entries(f"{key}s"))
    name = resource.properties["name"]
    return next(({**pair, "id": name} for pair in listed if pair["name"] == name), None)


def _make(link: ApiLink, resource: Resource, ids: dict[str, str]) -> str:
    service, path, key = _PLACES[resource.kind]
    properties = {k: v for k, v in resource.properties.items() if k != "rules"}
    body = {key: _translated(link, resource, properties, ids)}
    if service == "network":
        body[key]["description"] = _OURS
    path = path.removesuffix("/detail")
    made = _post(link, resource.name, service, path, body).body[key]
    return str(made["name"] if resource.kind == _KEY else made["id"])


def _ensure_rules(link: ApiLink, resource: Resource, group: str) -> None:
    """Also of one that is there: an earlier run may have ended in between."""
    for rule in resource.properties["rules"]:
        body = {"security_group_rule": {**rule, "security_group_id": group}}
        with suppress(BusyError):  # 409: it has it
            _post(link, resource.name, "network", "/security-group-rules", body)


def _post(link: ApiLink, subject: str, service: str, path: str, body: Properties) -> Answer:
    try:
        return link.post(service, path, subject, body)
    except FOREIGN as error:
        raise translate(error, subject, link.cloud) from error


def _translated(link: ApiLink, resource: Resource, properties: Properties, ids: dict[str, str]) -> Properties:
    """Heat's property names into the API's, references into ids."""
    values: Properties = _resolved(properties, ids)
    if resource.kind.startswith("OS::Neutron::"):
        if "network" in values:
            values["network_id"] = values.pop("network")
        if values.get("gateway_ip") == "":  # Heat's word for none
            values["gateway_ip"] = None
        if "external_gateway_info" in values:
            outside = values["external_gateway_info"]["network"]
            found = id_of(link, "network", "network", outside, resource.name)
            values["external_gateway_info"] = {"network_id": found}
        if "floating_network" in values:
            outside = values.pop("floating_network")
            values["floating_network_id"] = id_of(link, "network", "network", outside, resource.name)
        return values
    if resource.kind == _KEY:
        return {**values, "public_key": " ".join([*_material(values), _OURS])}
    del values["user_data_format"], values["user_data_update_policy"]
    values["imageRef"] = id_of(link, "image", "image", values.pop("image"), resource.name)
    values["flavorRef"] = id_of(link, "compute", "flavor", values.pop("flavor"), resource.name)
    values["user_data"] = _base64(values["user_data"])
    return values


def _resolved(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, dict):
        if set(value) == {"get_resource"}:
            return ids[value["get_resource"]]
        return {key: _resolved(item, ids) for key, item in value.items()}
    return [_resolved(item, ids) for item in value] if isinstance(value, list) else value


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _plugged(link: ApiLink, router: str) -> set[str]:
    """Subnets in which the router has a port."""
    ports = link.get("network", "/ports", "router", device_id=router).entries("ports")
    return {ip["subnet_id"] for port in ports for ip in port.get("fixed_ips", [])}


def _plug(link: ApiLink, ids: dict[str, str]) -> bool:
    """Plug the subnet into the router; False: it is there already."""
    if ids["subnet"] in _plugged(link, ids["router"]):
        return False
    path = f"/routers/{ids['router']}/add_router_interface"
    link.put("network", path, "router", {"subnet_id": ids["subnet"]})
    return True


def _unplug(link: ApiLink, there: dict[str, Properties | None]) -> None:
    """Undo `_plug`: a router with a port in a subnet cannot be deleted."""
    router, subnet = there["router"], there["subnet"]
    if router and subnet and subnet["id"] in _plugged(link, str(router["id"])):
        path = f"/routers/{router['id']}/remove_router_interface"
        link.put("network", path, "router", {"subnet_id": subnet["id"]})
