"""Makes the resources of an appliance without Heat, each found by its name first."""

from __future__ import annotations

import base64
from typing import Any

from backfill.drivers.openstack.appliance import Cluster, Properties, Resource, resources
from backfill.drivers.openstack.errors import FOREIGN, translate
from backfill.drivers.openstack.link import Link
from backfill.drivers.openstack.naming import id_of
from backfill.ports import DriverError, RefusedError

_PLACES = {
    "OS::Neutron::Net": ("network", "/networks", "network"),
    "OS::Neutron::Subnet": ("network", "/subnets", "subnet"),
    "OS::Neutron::SecurityGroup": ("network", "/security-groups", "security_group"),
    "OS::Neutron::Port": ("network", "/ports", "port"),
    "OS::Neutron::Router": ("network", "/routers", "router"),
    "OS::Nova::Server": ("compute", "/servers", "server"),
}


def apply(link: Link, wanted: Cluster) -> list[tuple[str, str, bool]]:
    """Make what is missing: (resource, id, whether it was made now). Twice is fine.

    A name that the cloud does not know is told before anything is made.
    """
    for service, kind, name in (
        ("image", "image", wanted.image),
        ("compute", "flavor", wanted.flavour),
        ("network", "network", wanted.external),
    ):
        if name:
            id_of(link, service, kind, name, wanted.name)
    ids: dict[str, str] = {}
    told = []
    for resource in resources(wanted):
        if resource.kind == "OS::Neutron::RouterInterface":
            _plug(link, ids)
            told.append((resource.name, ids["router"], False))
            continue
        found = _find(link, resource)
        ids[resource.name] = found or _make(link, resource, ids)
        told.append((resource.name, ids[resource.name], not found))
    return told


def remove(link: Link, wanted: Cluster) -> list[str]:
    """Delete all of it, the last first; what is not there is no mistake."""
    gone = []
    for resource in reversed(resources(wanted)):
        if resource.kind == "OS::Neutron::RouterInterface":
            continue
        found = _find(link, resource)
        if found:
            service, path, _ = _PLACES[resource.kind]
            link.delete(service, f"{path}/{found}", resource.name)
            gone.append(resource.name)
            _await_gone(link, resource)
    return gone


def _await_gone(link: Link, resource: Resource) -> None:
    for attempt in range(40):
        if not _find(link, resource):
            return
        link.pause_before(attempt)
    raise DriverError(resource.name, "it is being deleted and still there", "try again later")


def _find(link: Link, resource: Resource) -> str:
    """The id of the project's own resource of this name; RefusedError if there are several."""
    service, path, key = _PLACES[resource.kind]
    name = str(resource.properties["name"])
    query = {"name": f"^{name}$"} if key == "server" else {"name": name}
    if service == "network":
        query["project_id"] = link.project_id(resource.name)
    listed = link.get(service, path, resource.name, **query).body.get(f"{key}s", [])
    if len(listed) > 1:
        raise RefusedError(name, f"the project has {len(listed)} of this name", "rename the others")
    return str(listed[0]["id"]) if listed else ""


def _make(link: Link, resource: Resource, ids: dict[str, str]) -> str:
    service, path, key = _PLACES[resource.kind]
    properties = dict(resource.properties)
    rules = properties.pop("rules", [])
    body = {key: _translated(link, resource, properties, ids)}
    try:
        made = str(link.post(service, path, resource.name, body).body[key]["id"])
        for rule in rules:
            extra = {"security_group_rule": {**rule, "security_group_id": made}}
            link.post("network", "/security-group-rules", resource.name, extra)
    except FOREIGN as error:
        raise translate(error, resource.name, link.cloud) from error
    return made


def _translated(
    link: Link, resource: Resource, properties: Properties, ids: dict[str, str]
) -> Properties:
    """Heat's property names into the API's, references into ids."""
    values: Properties = _resolved(properties, ids)
    if resource.kind.startswith("OS::Neutron::"):
        if "network" in values:
            values["network_id"] = values.pop("network")
        if "external_gateway_info" in values:
            outside = values["external_gateway_info"]["network"]
            found = id_of(link, "network", "network", outside, resource.name)
            values["external_gateway_info"] = {"network_id": found}
        return values
    values.pop("user_data_format")
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


def _plug(link: Link, ids: dict[str, str]) -> None:
    """The subnet into the router; there already: nothing to do."""
    query = {"device_id": ids["router"]}
    ports = link.get("network", "/ports", "router", **query).body.get("ports", [])
    subnets = {ip["subnet_id"] for port in ports for ip in port.get("fixed_ips", [])}
    if ids["subnet"] not in subnets:
        path = f"/routers/{ids['router']}/add_router_interface"
        link.put("network", path, "router", {"subnet_id": ids["subnet"]})
