"""Room for stopped work that can hardly wait, on real parts: before new jobs, instances and pilots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.spec import JOB_USER
from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.daemon_rig import MIGRATE, REQUEUE, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# Who wants a host asks for ten hours, so nobody who can wait for some minutes can wait for its end.
LONG = ("-t", "600")
STOP = {"rung": "pause", "within_s": 60, "for_s": 280}
PATIENT = {"name": "patient", "partitions": ["htc"], "stand_still_s": 300, "ladder": [STOP, MIGRATE, REQUEUE]}
# One more than there is room for: what is not made, no limit forbids.
POLICY: dict[str, Any] = {
    "workloads": [PATIENT],
    "limits": {"max_instances": 3, "max_per_host": 1, "destroys_per_min": 60},
}
PILOTS = {"name": "pilots", "like": "condor", "partitions": ["htc"]}
# So long the longest of the known jobs ran, and so many others were short: who runs for longer than
# these is expected to end when the longest did.
LONGEST_S, SHORT = 100.0, 3
_PROMISED = "once its job has ended, its room is for stopped work that can hardly wait"


# A lab for each test: what is known of earlier jobs, and of how long others keep hosts, decides here.
@pytest.fixture
def rig() -> Iterator[DaemonRig]:
    with daemon_lab("making-room") as made:
        made.begin()
        made.start(**POLICY)
        yield made
        made.settle()


@pytest.fixture
def pool() -> Iterator[PoolRig]:
    with pool_lab("room-pilots") as made:
        made.cluster.begin()
        yield made
        made.clear()
        made.cluster.settle()


def known(rig: DaemonRig) -> None:
    """Let jobs run to their end, so that it is known how long such jobs run."""
    short = [rig.low(count=40, start=False) for _ in range(SHORT)]
    rig.completed(rig.low(count=int(LONGEST_S / 0.5), period_s=0.5), *short)


def two_at_work(rig: DaemonRig) -> tuple[str, str, str]:
    """Two jobs, one on each host, and one that waits."""
    low, other = rig.low(), rig.low()
    return low, other, rig.low(start=False)


def closed_for(rig: DaemonRig, low: str, other: str) -> str:
    """Take the host of a job, and see the other's node closed for it; who has the host."""
    (name, host), (elsewhere, _) = rig.where(low), rig.where(other)
    high = rig.high(host, *LONG)
    rig.becomes(name, "parked")
    rig.until(lambda: _PROMISED in refused(rig, elsewhere), what=f"why {elsewhere} takes no job")
    rig.until(lambda: "DRAIN" in rig.node_states()[elsewhere], what=f"{elsewhere} closed")
    assert rig.state(other) == "RUNNING"
    return high


def refused(rig: DaemonRig, subject: str) -> str:
    """What the daemon says that it does not do with it."""
    refusals = rig.ask("status")["refusals"]
    return "; ".join(one["reason"] for one in refusals if one["subject"] == subject)


def is_at_work(rig: DaemonRig, name: str, host: str) -> None:
    """Wait until a node works on this host."""
    there = {"phase": "ready", "host": host}
    rig.until(lambda: there.items() <= rig.nodes()[name].items(), what=f"{name} at work on {host}")


def restarts(rig: DaemonRig, *jobs: str) -> set[str]:
    """How often the jobs were started anew."""
    return {rig.show(job)["Restarts"] for job in jobs}


def test_an_instance_that_idles_elsewhere_makes_way(rig: DaemonRig) -> None:
    """It would have been kept for ten minutes; the stopped job goes on where it was."""
    low, other = rig.low(), rig.low(count=40, start=False)
    rig.completed(other)
    (name, host), (idle, elsewhere) = rig.where(low), rig.where(other)
    rig.until(lambda: not rig.nodes()[idle]["jobs"], what="that the daemon knows of no job there")
    high = rig.high(host, *LONG)
    is_at_work(rig, name, elsewhere)
    rig.counting(low)
    assert idle not in rig.nodes()
    assert rig.state(high) == "RUNNING"
    rig.finish(low)
    rig.release(high)
    assert restarts(rig, low) == {"0"}


def test_the_room_of_a_job_that_ends_is_for_the_one_that_was_stopped(rig: DaemonRig) -> None:
    """The node of the other takes no new job, though one waits, nor is an instance made for it there."""
    known(rig)
    low, other, waits = two_at_work(rig)
    high = closed_for(rig, low, other)
    (name, _), (_, elsewhere) = rig.where(low), rig.where(other)
    rig.finish(other)
    is_at_work(rig, name, elsewhere)
    rig.counting(low)
    assert rig.state(high) == "RUNNING"
    assert (rig.state(waits), rig.tally(waits)) == ("PENDING", [])
    rig.release(high)
    rig.finish(waits, low)
    assert restarts(rig, low, other, waits) == {"0"}


def test_a_host_that_is_free_again_opens_the_others(rig: DaemonRig) -> None:
    """The stopped job is back at home, so the node that was closed for it takes the next job."""
    known(rig)
    low, other, waits = two_at_work(rig)
    home, (elsewhere, _) = rig.where(low), rig.where(other)
    rig.release(closed_for(rig, low, other))
    is_at_work(rig, *home)
    rig.until(lambda: "DRAIN" not in rig.node_states()[elsewhere], what=f"{elsewhere} open")
    rig.finish(other)
    rig.counting(waits)
    assert rig.where(waits)[0] == elsewhere
    assert rig.where(low) == home
    rig.finish(waits, low)
    assert restarts(rig, low, other, waits) == {"0"}


def test_a_stopped_pilot_has_the_room_before_a_new_one(pool: PoolRig) -> None:
    """Its memory is on disk, and payloads wait for pilots: the room of one that goes is the stopped one's."""
    rig = pool.cluster
    script = {"user": JOB_USER, "partition": "htc", "script": str(pool.script()), "directory": "/tmp"}
    supply = {"most": 2, **script, "options": ["--output=/dev/null"], "keep_s": 600, "seen_after_s": 20}
    rig.start(workloads=[PILOTS], supply=supply, proof="memory", limits=POLICY["limits"])
    known(rig)
    payloads = dict(pool.payload(100_000, 0.2) for _ in range(3))
    rig.until(lambda: sum(1 for one in payloads if rig.tally(one)) == 2, what="two payloads at work")
    pilot, other = rig.ctl("squeue", "-h", "-o", "%i").split()
    (name, host), (_, elsewhere) = rig.where(pilot), rig.where(other)
    (payload,) = (one for one in payloads if any(name == line.split()[6] for line in rig.tally(one)))
    high = rig.high(host, *LONG)
    rig.until(lambda: rig.instances()[name] == (host, "suspended"), what="its memory on disk")
    rig.cancel(other)
    is_at_work(rig, name, elsewhere)
    pool.working(payload)
    there = rig.ctl("squeue", "-h", "-p", "htc", "-o", "%i %T").splitlines()
    assert there == [f"{pilot} RUNNING"]
    assert restarts(rig, pilot) == {"0"}
    assert pool.account(payloads[payload])["NumShadowStarts"] == 1
    assert len({line.split()[1] for line in rig.tally(payload)}) == 1
    rig.release(high)
