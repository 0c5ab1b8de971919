"""`backfill cloud apply` and `remove`, by what they ask of a cloud that lives in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from openstack import exceptions as sdk

from backfill.drivers.openstack.api.link import Answer, ApiLink
from backfill.drivers.openstack.appliance.applying import apply, remove
from backfill.drivers.openstack.appliance.template import Appliance
from backfill.drivers.openstack.settings import Patience
from backfill.ports.errors import BusyError, NotFoundError, RefusedError

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFThRcJk0GwO4+lMc8qTSYeSzfwEQGyD5EFbqEHWfuWv ada@ctl"
WANTED = Appliance(
    "c9",
    "cluster-c9",
    "10.99.0.0/24",
    "10.99.0.1",
    "node",
    "tiny",
    external="public",
    pool={"vn1": "10.99.0.2", "vn2": "10.99.0.3"},
    public_key=PUBLIC_KEY,
)


# What is wrong with a wish, and the sentence that says so.
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"image": "nosuch"}, "nosuch: cloud west has no image of this name"),
    ({"flavour": "nosuch"}, "nosuch: cloud west has no flavor of this name"),
    ({"external": "nosuch"}, "nosuch: cloud west has no network of this name"),
    ({"external": "nodes"}, "nodes: this network of cloud west leads nowhere outside"),
    ({"key": "nosuch"}, "nosuch: cloud west has no key pair.*openstack keypair create"),
    ({"network": "nodes"}, "nodes: a subnet of this name is there with 10.77.0.0/16, not"),
]


class MemoryCloud(ApiLink):
    """Lists of objects by kind; what is asked for by name, project or network is found."""

    def __init__(self) -> None:
        super().__init__("west", "", Patience(), sleep=lambda wait_s: None)
        mine = {"project_id": "p1"}
        self.kinds: dict[str, list[dict[str, Any]]] = {
            "images": [{"id": "i1", "name": "node", "status": "active"}],
            "flavors": [{"id": "f1", "name": "tiny", "vcpus": 1, "ram": 256}],
            "networks": [
                {"id": "n1", "name": "public", "router:external": True},
                {"id": "n2", "name": "nodes", "router:external": False, **mine},
            ],
            "subnets": [{"id": "s2", "name": "nodes", "cidr": "10.77.0.0/16", **mine}],
            "ports": [],
            "security-groups": [],
            "security-group-rules": [],
            "routers": [],
            "floatingips": [],
            "servers": [],
            "os-keypairs": [],
        }
        self.deleted: list[str] = []

    def project_id(self, subject: str) -> str:
        return "p1"

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        kind, _, identity = path.strip("/").removesuffix("/detail").partition("/")
        if identity:
            for found in self.kinds.get(kind, []):
                if found["id"] == identity:
                    return Answer({kind[:-1]: found}, "")
            raise NotFoundError(subject, "there is no such thing")
        if kind == "os-keypairs":
            return Answer({"keypairs": [{"keypair": pair} for pair in self.kinds[kind]]}, "")
        wanted = {key: value.strip("^$") for key, value in query.items()}
        matching = [f for f in self.kinds[kind] if wanted.items() <= f.items()]
        return Answer({kind.replace("-", "_"): matching}, "")

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        kind = path.strip("/")
        ((key, wanted),) = body.items()
        if wanted in self.kinds[kind]:
            raise sdk.HttpException(message="it exists already", http_status=409)
        made = wanted
        if kind != "security-group-rules":
            identity = wanted["name"] if kind == "os-keypairs" else f"x{sum(map(len, self.kinds.values()))}"
            made = {**wanted, "id": identity, "project_id": "p1", "status": "ACTIVE"}
        self.kinds[kind].append(made)
        return Answer({key: made}, "")

    def put(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        _, router, verb = path.strip("/").split("/")
        self.kinds["ports"] = [p for p in self.kinds["ports"] if p.get("device_id") != router]
        if verb == "add_router_interface":
            self.kinds["ports"].append(
                {
                    "id": "plug",
                    "name": "",
                    "device_id": router,
                    "fixed_ips": [body],
                    "device_owner": "network:router_interface",
                    "network_id": self.id("networks"),
                }
            )
        return Answer({}, "")

    def delete(self, service: str, path: str, subject: str) -> None:
        kind, identity = path.strip("/").split("/")
        used = [p for p in self.kinds["ports"] if p.get("device_id") == identity]
        assert not used, f"{kind} with ports"
        self.kinds[kind] = [f for f in self.kinds[kind] if f["id"] != identity]
        self.deleted.append(kind)

    def id(self, kind: str) -> str:
        return str(self.kinds[kind][-1]["id"])


def test_what_is_made_is_found_completed_and_removed() -> None:
    """The router has an address that nobody else has, and goes without being named; a rule that an
    earlier run did not come to is made by the next one.
    """
    cloud = MemoryCloud()
    assert all(made for _, _, made in apply(cloud, WANTED, 1))
    assert cloud.kinds["subnets"][-1]["gateway_ip"] == "10.99.0.4"
    server = cloud.kinds["servers"][0]
    (pair,), (outside,) = cloud.kinds["os-keypairs"], cloud.kinds["floatingips"]
    assert server["key_name"] == pair["name"] == "backfill-c9"
    assert (outside["floating_network_id"], outside["port_id"]) == ("n1", cloud.kinds["ports"][0]["id"])
    assert (server["config_drive"], server["networks"]) == (True, [{"port": cloud.kinds["ports"][0]["id"]}])
    rules = list(cloud.kinds["security-group-rules"])
    cloud.kinds["security-group-rules"].pop()
    assert not any(made for _, _, made in apply(cloud, WANTED, 1))
    assert cloud.kinds["security-group-rules"] == rules
    assert remove(cloud, replace(WANTED, external="", public_key="")) == [
        "floating_ip",
        "router",
        "key",
        "guard",
        "controller",
        "controller_port",
        "controller_group",
        "security_group",
        "subnet",
        "network",
    ]
    assert remove(cloud, WANTED) == []
    assert [n["name"] for n in cloud.kinds["networks"]] == ["public", "nodes"]


def test_what_is_not_ours_stays() -> None:
    """A network that somebody made by hand; and everything while others are in ours."""
    cloud = MemoryCloud()
    apply(cloud, WANTED, 1)
    strange = {"id": "p9", "name": "strange", "network_id": cloud.id("networks")}
    cloud.kinds["ports"].append(strange)
    with pytest.raises(BusyError, match=r"such as strange.*backfill reclaim"):
        remove(cloud, WANTED)
    assert remove(cloud, replace(WANTED, name="c8", network="nodes")) == []
    assert cloud.deleted == []


def test_a_key_pair_of_somebody_else_is_not_taken() -> None:
    """It is told before anything is made, and `remove` leaves it; one with our key is used."""
    cloud = MemoryCloud()
    theirs = {"name": "backfill-c9", "id": "backfill-c9", "public_key": "ssh-ed25519 AAAAother ada@ctl"}
    cloud.kinds["os-keypairs"].append(theirs)
    with pytest.raises(RefusedError, match=r"key pair of this name is there, with another key.*another name"):
        apply(cloud, WANTED, 1)
    assert len(cloud.kinds["networks"]) == 2
    theirs["public_key"] = PUBLIC_KEY.replace("ada@ctl", "eve")
    told = apply(cloud, WANTED, 1)
    assert ("key", "backfill-c9", False) in told
    assert "key" not in remove(cloud, WANTED)
    assert cloud.kinds["os-keypairs"] == [theirs]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_is_told_before_anything_is_made(mistake: dict[str, Any], words: str) -> None:
    """One sentence each."""
    cloud = MemoryCloud()
    with pytest.raises(RefusedError, match=words):
        apply(cloud, replace(WANTED, **mistake), 1)
    assert len(cloud.kinds["networks"]) == 2
    assert not cloud.kinds["security-groups"]


@pytest.mark.parametrize(
    ("there", "words"),
    [
        ({"cidr": "110.99.0.0/24"}, "subnet of this name is there with 110.99.0.0/24, not 10.99"),
        ({"cidr": WANTED.cidr}, "a subnet of this name is in another network"),
    ],
)
def test_another_subnet_of_this_name_is_not_taken(there: dict[str, Any], words: str) -> None:
    """Neither one that looks alike, nor one of another network."""
    cloud = MemoryCloud()
    cloud.kinds["subnets"].append(
        {"id": "s9", "name": WANTED.network, "project_id": "p1", "network_id": "n9", **there}
    )
    with pytest.raises(RefusedError, match=words):
        apply(cloud, WANTED, 1)
    assert len(cloud.kinds["networks"]) == 2


def test_a_controller_in_error_is_told() -> None:
    """With Nova's reason; it is not taken for one that is there."""
    cloud = MemoryCloud()
    apply(cloud, WANTED, 1)
    cloud.kinds["servers"][0] |= {"status": "ERROR", "fault": {"message": "No valid host."}}
    with pytest.raises(RefusedError, match=r"in ERROR: No valid host.*backfill cloud remove"):
        apply(cloud, WANTED, 1)
