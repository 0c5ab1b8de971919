"""A whole cluster in a project, as a list of resources: written as a Heat template; pure."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from backfill.drivers.openstack.api.states import appliance_name, guard_name

Properties = dict[str, Any]
CONTROLLER = "ctl"  # its host name
_GROUP = "OS::Neutron::SecurityGroup"
_MOST_HOSTS = 16 << 10  # of lines for /etc/hosts: Nova takes 64 KB of user data, in base64


@dataclass(frozen=True, slots=True)
class Appliance:
    """The wanted cluster. `cidr` holds the controller, all instances (`pool`) and nothing else.

    `public_key` makes a key pair of the cluster's own; `key` names one that is there.
    """

    name: str
    network: str
    cidr: str
    controller: str  # address
    image: str
    flavour: str
    key: str = ""
    external: str = ""  # a network outside, for a router; empty: none
    ports: tuple[int, ...] = (22,)  # open to everybody, for the controller
    pool: Mapping[str, str] = field(default_factory=dict)  # addresses of the virtual nodes, by name
    public_key: str = ""

    @property
    def hosts(self) -> dict[str, str]:
        """Addresses of all its machines by name, whether they are there or not yet."""
        return {CONTROLLER: self.controller, **self.pool}

    @property
    def gateway(self) -> str:
        """The router's address inside: the first that nobody else has; empty without a router."""
        if not self.external:
            return ""
        taken = {self.controller, *self.pool.values()}
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
    # Slurm, munge and NFS speak freely within the cluster, and with nobody else.
    within = {"direction": "ingress", "ethertype": "IPv4", "remote_ip_prefix": inside}
    everybody = {**within, "protocol": "tcp", "remote_ip_prefix": "0.0.0.0/0"}
    ways_in = [{**everybody, "port_range_min": port, "port_range_max": port} for port in wanted.ports]
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
        Resource("security_group", _GROUP, {"name": called, "rules": [within]}),
        Resource("controller_group", _GROUP, {"name": f"{called}-controller", "rules": ways_in}),
        Resource(
            "controller_port",
            "OS::Neutron::Port",
            {
                "name": f"{called}-controller",
                "network": ref("network"),
                "fixed_ips": [{"ip_address": wanted.controller}],
                "security_groups": [ref("security_group"), ref("controller_group")],
            },
            ("network", "subnet", "security_group", "controller_group"),
        ),
        Resource("controller", "OS::Nova::Server", _controller(wanted, called), ("controller_port",)),
    ]
    if wanted.public_key:
        found.insert(0, _key(wanted))
    if wanted.external:
        found += _way_out(wanted)
    # All nodes have it, and nothing comes of it. As the last to be made it is the first to go, which Neutron
    # refuses while a node has it: so Heat deletes nothing else either. (A refused group loses its rules.)
    last = ("controller", "floating_ip") if wanted.external else ("controller",)
    return [*found, Resource("guard", _GROUP, {"name": guard_name(wanted.name), "rules": []}, last)]


def every_resource(wanted: Appliance) -> list[Resource]:
    """Add those that are not asked for now: an earlier wish may have made them."""
    found = resources(wanted)
    names = {resource.name for resource in found}
    return found + [r for r in (_key(wanted), *_way_out(wanted)) if r.name not in names]


def _key(wanted: Appliance) -> Resource:
    pair = {"name": appliance_name(wanted.name), "public_key": wanted.public_key}
    return Resource("key", "OS::Nova::KeyPair", pair)


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
        # A pool that grows is no reason to make the controller anew, which has the cluster's books.
        "user_data_update_policy": "IGNORE",
        "user_data": "#cloud-config\n" + json.dumps(_at_birth(wanted)),
    }
    key = ref("key") if wanted.public_key else wanted.key
    return {**properties, "key_name": key} if key else properties


def _at_birth(wanted: Appliance) -> Properties:
    """Tell cloud-init what the controller is; it knows its nodes by name before they are there."""
    told: Properties = {"hostname": CONTROLLER, "packages": ["slurmctld", "munge", "python3-venv"]}
    lines = "".join(f"{address} {name}\n" for name, address in wanted.hosts.items())
    if len(lines) <= _MOST_HOSTS:
        told["write_files"] = [{"path": "/etc/hosts", "append": True, "content": lines}]
    return told


def _way_out(wanted: Appliance) -> list[Resource]:
    """Describe the router, its plug into the subnet, and an address outside for the controller."""
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
        Resource(
            "floating_ip",
            "OS::Neutron::FloatingIP",
            {"floating_network": wanted.external, "port_id": ref("controller_port")},
            ("router_interface", "controller_port"),
        ),
    ]


def template(wanted: Appliance) -> Properties:
    """Write the Heat template (HOT). The daemon makes the nodes: the outputs list all, by name."""
    made = resources(wanted)
    parameters = {
        "image": {"type": "string", "default": wanted.image, "description": "of the controller"},
        "flavor": {"type": "string", "default": wanted.flavour, "description": "of the controller"},
    }
    body = {
        r.name: {"type": r.kind, "properties": _asking(r.properties)}
        | ({"depends_on": list(r.needs)} if r.needs else {})
        for r in made
    }
    outputs = {
        "hosts": {"description": "addresses of controller and nodes by name", "value": wanted.hosts},
        "controller_id": {"value": ref("controller")},
        "network_id": {"value": ref("network")},
        "security_group_id": {"value": ref("security_group")},
    }
    if wanted.external:
        outputs["floating_address"] = {"value": {"get_attr": ["floating_ip", "floating_ip_address"]}}
    return {
        "heat_template_version": "2018-08-31",
        "description": f"Cluster {wanted.name}: controller, network and room for virtual nodes",
        "parameters": parameters,
        "resources": body,
        "outputs": outputs,
    }


def _asking(properties: Properties) -> Properties:
    """Image and flavour of the controller are parameters of the template."""
    asked = {"image": {"get_param": "image"}, "flavor": {"get_param": "flavor"}}
    return {key: asked.get(key, value) for key, value in properties.items()}
