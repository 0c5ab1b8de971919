"""A guest that never boots: taken away, explained, tried again, given up, and retried by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.policyfile import policy
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]

ONE: dict[str, Any] = {"limits": {"max_instances": 1}}
# A kernel that finds no first program stands still for ever; one that is only probed powers off.
HANGS, STOPS = "panic=0 rdinit=/nowhere", "backfill.probe"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("boot") as rig:
        yield rig


def broken(rig: DaemonRig, more: str, **scale: Any) -> dict[str, Any]:
    """Policy changes with an image whose kernel command line stops it."""
    good = policy(rig.lab, rig.image)["libvirt"]["images"]["default"]
    bad = {**good, "cmdline": f"{good['cmdline']} {more}"}
    return {
        "libvirt": {"images": {"default": good, "bad": bad}},
        "instances": {"image": "bad"},
        "scale": {"idle_s": 600, **scale},
        **ONE,
    }


def test_a_guest_that_powers_off_fails_at_once(rig: DaemonRig) -> None:
    """Nobody waits for the time limit where the hypervisor knows that the guest has ended."""
    low = rig.low(start=False)
    rig.restart(**broken(rig, STOPS, boot_within_s=600, retry_after_s=1, give_up_after=1))
    rig.until(lambda: rig.gave_up(), what="a node that was given up")
    (node,) = [n for n in rig.nodes().values() if n["phase"] == "given-up"]
    assert "its guest is off" in node["reason"]
    rig.cancel(low)
    rig.until(lambda: not rig.ask("status")["low_priority_jobs_waiting"])
    rig.backfill("retry", node["name"])
    rig.until(lambda: node["name"] not in rig.nodes())


def test_a_guest_that_hangs_is_given_up_and_retried_by_hand(rig: DaemonRig) -> None:
    """Three tries with growing pauses, nothing left in between, then a clear state and a remedy."""
    policy = broken(rig, HANGS, boot_within_s=2, retry_after_s=1, give_up_after=3)
    low = rig.low(start=False)
    rig.restart(**policy)
    assert "did not register with Slurm" in rig.becomes("vn1", "failed")["reason"]
    assert "did not register with Slurm within 2 s" in rig.backfill("explain", "vn1")
    node = rig.becomes("vn1", "given-up")
    assert node["failures"] == 3
    assert "given up after 3 failures: it did not register with Slurm" in node["reason"]
    first_s, second_s = waited_s(rig)
    assert first_s > 0.9
    assert second_s > 1.9
    assert rig.domains() == {host: [] for host in rig.lab.hosts}
    assert rig.node_states().keys() == set(rig.lab.hosts)
    shown = rig.backfill("explain", "vn1")
    assert "given up" in shown
    assert "backfill retry vn1" in shown
    rig.restart(**ONE)
    assert rig.phase("vn1") == "given-up"
    rig.backfill("retry", "vn1")
    rig.finish(low)
    assert rig.nodes()["vn1"]["failures"] == 0


def waited_s(rig: DaemonRig) -> list[float]:
    """Seconds from each failure to the next try."""
    failed_s, waits_s = 0.0, []
    for record in rig.journal("phase"):
        node = record.body.get("node")
        phase = node["phase"] if isinstance(node, dict) else ""
        if phase == "failed":
            failed_s = record.at_s
        elif phase == "booting" and failed_s:
            waits_s.append(record.at_s - failed_s)
    return waits_s
