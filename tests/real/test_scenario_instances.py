"""What instances bring along by themselves: a parent that is made ahead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.policyfile import policy
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("instances") as rig:
        yield rig


def parents(rig: DaemonRig, host: str) -> list[dict[str, Any]]:
    """What the daemon has seen there."""
    seen = next(h for h in rig.ask("hosts")["hosts"] if h["name"] == host)
    return list(seen["parents"])


def made(rig: DaemonRig, host: str) -> bool:
    return any(parent["made"] for parent in parents(rig, host))


@pytest.mark.soak
def test_a_parent_is_made_ahead_given_up_for_a_job_and_cloned(rig: DaemonRig) -> None:
    """Whoever gets the host finds nothing of it running; later the first instance is a clone."""
    images = policy(rig.lab, rig.image)["libvirt"]["images"]
    images["default"]["warm_parents"] = 1
    rig.restart(
        libvirt={"images": images},
        cloning={"method": "instant"},
        ladder=[PAUSE, REQUEUE],
        limits={"max_instances": 1},
    )
    host = rig.lab.hosts[0]
    rig.until(lambda: parents(rig, host), what="a parent, made or in the making")
    high = rig.high(host)
    assert rig.virsh(host, "list", "--name") == ""
    rig.release(high)
    rig.until(lambda: all(made(rig, h) for h in rig.lab.hosts), 300, "a parent on each host")
    assert rig.domains() == {host: [] for host in rig.lab.hosts}
    low = rig.low()
    name, there = rig.where(low)
    assert "/.parents/" in rig.virsh(there, "dumpxml", name)
    rig.finish(low)
