"""Real guests whose clock or munge key is wrong: corrected and proven, or never released."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import SUSPEND, DaemonRig, daemon_lab

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}, "scale": {"idle_s": 600, "retry_after_s": 600}}
# Further off than a credential of munge may be old.
BEHIND = "date -s @$(($(date +%s) - 40000))"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("ready") as rig:
        rig.start(**ONE)
        yield rig


def working(rig: DaemonRig) -> tuple[str, str, str]:
    """A counting job, its node and its host; a busy machine may take its time for the boot."""
    low = rig.low(start=False)
    rig.counting(low)
    return (low, *rig.where(low))


def checks(rig: DaemonRig, name: str) -> dict[str, dict[str, Any]]:
    return {c["name"]: c for c in rig.nodes()[name]["checks"]}


def set_and_proven(rig: DaemonRig, name: str) -> None:
    """The clock was put right on the way back, and measured again before the node was released."""
    woken = [r.body for r in rig.journal("change") if r.body.get("t") == "Woken"]
    assert any(3e4 < float(str(body["correction_s"])) < 5e4 for body in woken), woken
    clock = checks(rig, name)["clock"]
    assert clock["ok"]
    found = re.match(r"[+-][\d.]+", clock["sentence"])
    assert found is not None
    assert abs(float(found[0])) < 1.0


def test_a_clock_that_is_hours_off_is_set_and_proven_before_the_job_goes_on(rig: DaemonRig) -> None:
    """Slurm would let the job fail there; the way back sets the clock and measures it again."""
    low, name, host = working(rig)
    assert {c["ok"] for c in checks(rig, name).values()} == {True}
    rig.out_of_guest(host, name, BEHIND)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(high)
    rig.becomes(name, "ready")
    rig.counting(low)
    set_and_proven(rig, name)
    rig.finish(low)


def test_a_guest_that_comes_back_from_disk_hours_late_is_put_right(rig: DaemonRig) -> None:
    """The same after its memory was written to disk and read again."""
    rig.restart(**ONE, ladder=[{**SUSPEND, "within_s": 150}])
    low, name, host = working(rig)
    rig.out_of_guest(host, name, BEHIND)
    high = rig.high(host, start=False)
    rig.until(lambda: rig.instances()[name] == (host, "suspended"), what="a guest on disk")
    rig.started(high)
    rig.release(high)
    rig.becomes(name, "ready")
    rig.counting(low)
    set_and_proven(rig, name)
    rig.finish(low)
    rig.restart(**ONE)


def test_a_node_with_a_wrong_munge_key_never_comes_back(rig: DaemonRig) -> None:
    """Its credentials are refused both ways: it stands still again, and its job with it, intact."""
    low, name, host = working(rig)
    # Only now: a healthy guest on a busy machine may need longer for its proof.
    rig.restart(**ONE, readiness={"munge_within_s": 10})
    rig.becomes(name, "ready")
    generation = rig.nodes()[name]["generation"]
    spoil = "head -c 1024 /dev/urandom >/etc/munge/munge.key; backfill-service restart munged"
    rig.out_of_guest(host, name, spoil)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(high)
    rig.until(
        lambda: any(
            all(words in str(r.body) for words in ("its return failed", "munge", "not proven"))
            for r in rig.journal("phase")
        ),
        what="a return that fails because of munge",
    )
    rig.becomes(name, "parked")
    rig.until(lambda: rig.state(low) == "SUSPENDED", what="that its job stands still")
    assert rig.nodes()[name]["generation"] == generation
    assert rig.where(low) == (name, host)
    assert rig.show(low)["Restarts"] == "0"
    released = [
        r
        for r in rig.journal("intent")
        if r.body.get("t") in ("UndrainNode", "ResumeJob")
        and r.body.get("generation") == generation
        and r.at_s > rig.started(high)
    ]
    assert released == []
    rig.cancel(low)
    rig.restart(**ONE)
