"""`backfill cloud apply` on a real cloud: made once, found afterwards, removed completely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.appliance.applying import apply, remove
from backfill.drivers.openstack.appliance.template import Appliance
from backfill.ports.errors import BusyError, RefusedError
from tests.real.openstack_rig import IMAGE, QUICK, connect, nova
from tests.unit.test_cloud_applying import MISTAKES, PUBLIC_KEY

pytestmark = [pytest.mark.real, pytest.mark.gate]
WANTED = Appliance(
    "c9",
    "cluster-c9",
    "10.99.0.0/24",
    "10.99.0.1",
    IMAGE,
    "tiny",
    external="public",
    pool={"vn1": "10.99.0.3", "vn2": "10.99.0.4"},
    public_key=PUBLIC_KEY,
)
LIMIT_S = 600.0


@pytest.fixture
def link(clouds: Path) -> Iterator[ApiLink]:
    made = ApiLink("west", str(clouds), QUICK)
    remove(made, WANTED)  # after a test that failed
    yield made
    for port in ports(clouds):
        if port.name == "strange":
            connect(clouds, "west").network.delete_port(port)
    remove(made, WANTED)
    made.close()


def ports(clouds: Path) -> list[Any]:
    return list(connect(clouds, "west").network.ports())


def test_apply_makes_what_is_missing_and_remove_takes_all(clouds: Path, link: ApiLink) -> None:
    """Controller with its addresses behind its security group and with its key pair, a router with
    another address; a second run changes nothing.
    """
    first = apply(link, WANTED, LIMIT_S)
    assert all(made for _, _, made in first)
    seen = connect(clouds, "west")
    group = seen.network.find_security_group("backfill-c9-controller", ignore_missing=False)
    rule = next(
        r for r in seen.network.security_group_rules(security_group_id=group.id) if r.port_range_min == 22
    )
    seen.network.delete_security_group_rule(rule)  # as if the first run had ended here
    second = apply(link, WANTED, LIMIT_S)
    assert [(name, identity) for name, identity, _ in second] == [(n, i) for n, i, _ in first]
    assert not any(made for _, _, made in second)
    rules = seen.network.security_group_rules(security_group_id=group.id)
    assert 22 in {r.port_range_min for r in rules}
    port = seen.network.find_port("backfill-c9-controller", ignore_missing=False)
    assert port.fixed_ips[0]["ip_address"] == "10.99.0.1"
    within = seen.network.find_security_group("backfill-c9", ignore_missing=False)
    assert set(port.security_group_ids) == {group.id, within.id}
    assert seen.network.find_subnet("cluster-c9", ignore_missing=False).gateway_ip == "10.99.0.2"
    server = seen.compute.find_server("backfill-c9-controller", ignore_missing=False)
    server = seen.compute.get_server(server.id)
    assert (server.status, server.key_name) == ("ACTIVE", "backfill-c9")
    (outside,) = seen.network.ips(port_id=port.id)
    assert outside.fixed_ip_address == "10.99.0.1"

    # What others have made stays, whatever its name.
    assert remove(link, replace(WANTED, name="c8", network="nodes")) == []
    assert seen.network.find_network("nodes") is not None
    # The router goes whether or not it is asked for, and with anything else inside nothing goes.
    network = seen.network.find_network("cluster-c9", ignore_missing=False)
    strange = seen.network.create_port(network_id=network.id, name="strange")
    with pytest.raises(BusyError, match=r"such as strange.*backfill reclaim"):
        remove(link, WANTED)
    seen.network.delete_port(strange)
    assert set(remove(link, replace(WANTED, external="", public_key=""))) == {
        "key",
        "floating_ip",
        "network",
        "subnet",
        "security_group",
        "controller_group",
        "guard",
        "controller_port",
        "controller",
        "router",
    }
    assert remove(link, WANTED) == []
    assert not [one for one in ports(clouds) if one.name]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES)
def test_a_mistake_is_told_before_anything_is_made(
    clouds: Path, link: ApiLink, mistake: dict[str, Any], words: str
) -> None:
    """One sentence each."""
    with pytest.raises(RefusedError, match=words):
        apply(link, replace(WANTED, **mistake), LIMIT_S)
    assert connect(clouds, "west").network.find_security_group("backfill-c9") is None


def test_a_controller_that_finds_no_room_is_told(clouds: Path, link: ApiLink) -> None:
    """By the first run and by the next one; `remove` clears it away."""
    flavour = {"name": "too-big", "ram": 900000, "vcpus": 64, "disk": 1}
    made = nova(clouds, "admin", "POST", "/flavors", {"flavor": flavour})["flavor"]["id"]
    try:
        for _ in range(2):
            with pytest.raises(RefusedError, match=r"in ERROR: No valid host.*cloud remove"):
                apply(link, replace(WANTED, flavour="too-big"), LIMIT_S)
    finally:
        nova(clouds, "admin", "DELETE", f"/flavors/{made}")
    assert "controller" in remove(link, WANTED)
