"""A whole cluster in a project, as a list of resources: written as a Heat template; pure."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass, field
from typing import Any

from backfill.drivers.openstack.api.states import appliance_name

Properties = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Appliance:
    """The wanted cluster. `cidr` holds the controller, all instances (`pool`) and nothing else."""

    name: str
    network: str
    cidr: str
    controller: str  # address
    image: str
    flavour: str
    key: str = ""
    external: str = ""  # a network outside, for a router; empty: none
    ports: tuple[int, ...] = (22,)  # open to everybody, for the controller
    pool: tuple[str, ...] = ()  # addresses of the virtual nodes

    @property
    def gateway(self) -> str:
        """The router's address inside: the first that nobody else has; empty without a router."""
        if not self.external:
            return ""
        taken = {self.controller, *self.pool}
        free = (str(one) for one in ipaddress.ip_network(self.cidr).hosts())
        return next((address for address in free if address not in taken), "")


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource in Heat's words; `needs` names others of the list that come before it."""

    name: str
    kind: str
    properties: Properties
    needs: tuple[str, ...] = field(default=())


def ref(name: str) -> dict[str, str]:
    """Write a reference to another resource, as Heat does."""
    return {"get_resource": name}


def resources(wanted: Appliance) -> list[Resource]:
    """In an order in which they can be made."""
    inside = str(ipaddress.ip_network(wanted.cidr))
    called = appliance_name(wanted.name)
    rules = [
        {
            "direction": "ingress",
            "ethertype": "IPv4",
            "protocol": "tcp",
            "remote_ip_prefix": "0.0.0.0/0",
            "port_range_min": port,
            "port_range_max": port,
        }
        for port in wanted.ports
    ]
    # Slurm, munge and NFS speak freely within the cluster, and with nobody else.
    rules.append({"direction": "ingress", "ethertype": "IPv4", "remote_ip_prefix": inside})
    found = [
        Resource("network", "OS::Neutron::Net", {"name": wanted.network}),
        Resource(
            "subnet",
            "OS::Neutron::Subnet",
            {
                "name": wanted.network,
                "network": ref("network"),
                "cidr": inside,
                "ip_version": 4,
                "enable_dhcp": False,
                "gateway_ip": wanted.gateway,
            },
            ("network",),
        ),
        Resource("security_group", "OS::Neutron::SecurityGroup", {"name": called, "rules": rules}),
        Resource(
            "controller_port",
            "OS::Neutron::Port",
            {
                "name": f"{called}-controller",
                "network": ref("network"),
                "fixed_ips": [{"ip_address": wanted.controller}],
                "security_groups": [ref("security_group")],
            },
            ("network", "subnet", "security_group"),
        ),
        Resource("controller", "OS::Nova::Server", _controller(wanted, called), ("controller_port",)),
    ]
    return found + (way_out(wanted) if wanted.external else [])


def _controller(wanted: Appliance, called: str) -> Properties:
    properties: Properties = {
        "name": f"{called}-controller",
        "image": wanted.image,
        "flavor": wanted.flavour,
        "networks": [{"port": ref("controller_port")}],
        "metadata": {"backfill_controller": wanted.name},
        # Without DHCP it learns its address from there.
        "config_drive": True,
        "user_data_format": "RAW",
        "user_data": "#cloud-config\n"
        + json.dumps({"hostname": "ctl", "packages": ["slurmctld", "munge", "python3-venv"]}),
    }
    return {**properties, "key_name": wanted.key} if wanted.key else properties


def way_out(wanted: Appliance) -> list[Resource]:
    """Describe the router and its plug into the subnet."""
    properties: Properties = {"name": appliance_name(wanted.name)}
    if wanted.external:
        properties["external_gateway_info"] = {"network": wanted.external}
    return [
        Resource("router", "OS::Neutron::Router", properties),
        Resource(
            "router_interface",
            "OS::Neutron::RouterInterface",
            {"router": ref("router"), "subnet": ref("subnet")},
            ("router", "subnet"),
        ),
    ]


def template(wanted: Appliance) -> Properties:
    """Write the Heat template (HOT); addresses of the node pool are told as an output."""
    addresses = list(wanted.pool)
    made = resources(wanted)
    parameters = {
        "image": {"type": "string", "default": wanted.image, "description": "of the controller"},
        "flavor": {"type": "string", "default": wanted.flavour, "description": "of the controller"},
        "pool_size": {
            "type": "number",
            "default": len(addresses),
            "description": "virtual nodes at most; the daemon makes and removes them",
            "constraints": [{"range": {"min": 1, "max": len(addresses)}}],
        },
    }
    body = {
        r.name: {"type": r.kind, "properties": _asking(r.properties)}
        | ({"depends_on": list(r.needs)} if r.needs else {})
        for r in made
    }
    return {
        "heat_template_version": "2018-08-31",
        "description": f"Cluster {wanted.name}: controller, network and room for virtual nodes",
        "parameters": parameters,
        "resources": body,
        "outputs": {
            "controller_address": {"value": wanted.controller},
            "pool_addresses": {"value": addresses},
            "pool_size": {"value": {"get_param": "pool_size"}},
            "network_id": {"value": ref("network")},
            "security_group_id": {"value": ref("security_group")},
        },
    }


def _asking(properties: Properties) -> Properties:
    """Image and flavour of the controller are parameters of the template."""
    asked = {"image": {"get_param": "image"}, "flavor": {"get_param": "flavor"}}
    return {key: asked.get(key, value) for key, value in properties.items()}
