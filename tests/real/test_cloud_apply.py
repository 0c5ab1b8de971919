"""`backfill cloud apply` on a real cloud: made once, found afterwards, removed completely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.drivers.openstack.appliance import Cluster
from backfill.drivers.openstack.applying import apply, remove
from backfill.drivers.openstack.link import Link
from backfill.ports import RefusedError
from tests.real.openstack_rig import IMAGE, QUICK, connect

pytestmark = pytest.mark.real
WANTED = Cluster("c9", "cluster-c9", "10.99.0.0/24", "10.99.0.5", IMAGE, "tiny")


def test_apply_makes_what_is_missing_and_remove_takes_all(clouds: Path) -> None:
    """Controller with its address behind its security group; a second run changes nothing.

    A name that the cloud does not know is told before anything is made.
    """
    link = Link("west", str(clouds), QUICK)
    for mistaken in (
        replace(WANTED, image="nosuch"),
        replace(WANTED, flavour="nosuch"),
        replace(WANTED, external="nosuch"),
    ):
        with pytest.raises(RefusedError, match="nosuch: cloud west has no"):
            apply(link, mistaken)
    assert remove(link, WANTED) == []
    first = apply(link, WANTED)
    assert all(made for _, _, made in first)
    second = apply(link, WANTED)
    assert [(name, identity) for name, identity, _ in second] == [(n, i) for n, i, _ in first]
    assert not any(made for _, _, made in second)
    seen = connect(clouds, "west")
    port = seen.network.find_port("backfill-c9-controller", ignore_missing=False)
    assert port.fixed_ips[0]["ip_address"] == "10.99.0.5"
    assert seen.compute.find_server("backfill-c9-controller") is not None
    assert set(remove(link, WANTED)) == {
        "network", "subnet", "security_group", "controller_port", "controller",
    }  # fmt: skip
    assert remove(link, WANTED) == []
    assert seen.compute.find_server("backfill-c9-controller") is None
    link.close()
