"""What Slurm will not suspend, what others suspended, and jobs on two nodes, on real parts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.releases import RELEASES

pytestmark = pytest.mark.real

POLICY: dict[str, Any] = {
    "ladder": [PAUSE, REQUEUE],
    "limits": {"max_instances": 2, "max_per_host": 1},
    "scale": {"idle_s": 600, "warm": 2},
    # A guest that a busy machine starves for minutes is not dead.
    "liveness": {"down_after_s": 3600},
}
# Heterogeneous jobs are started by the backfill scheduler only, which takes its time otherwise.
QUICK = "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=2"
# slurmctld looks for jobs that are over their limits every half a minute.
_LOOKS_S = 35.0


@pytest.fixture(scope="module", params=RELEASES)
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("suspended", slurm_version=request.param, extra_conf=(QUICK,)) as rig:
        rig.start(**POLICY)
        yield rig


def components(rig: DaemonRig, job: str) -> list[dict[str, str]]:
    """What Slurm shows of each component of a heterogeneous job."""
    lines = rig.ctl("scontrol", "-o", "show", "job", job).splitlines()
    return [{k: v for k, _, v in (w.partition("=") for w in line.split())} for line in lines]


def limits(rig: DaemonRig, job: str) -> set[str]:
    """The time limits of the components, which have to be the same."""
    return {part["TimeLimit"] for part in components(rig, job)}


def stopped(rig: DaemonRig, job: str) -> tuple[str, str, dict[str, Any]]:
    """Have the host of a job taken: its node, who took it, and as what the job is held there."""
    name, host = rig.where(job)
    high = rig.high(host)
    rig.becomes(name, "parked")
    (held,) = rig.nodes()[name]["held"]
    assert "heterogeneous" in held["refused"]["words"]
    return name, high, held


def test_a_heterogeneous_job_gets_the_length_of_its_stop(rig: DaemonRig) -> None:
    """Both components have an hour more while the first stands still, and then the stop itself."""
    low = rig.low("-n1", "-t10", ":", "-p", "htc", "-n1", "-t10", start=False)
    rig.counting(low)
    assert limits(rig, low) == {"00:10:00"}
    name, high, held = stopped(rig, low)
    began_s = rig.started(high)
    rig.until(lambda: limits(rig, low) == {"01:10:00"}, what="more time for both components")
    rig.assert_silent(low, began_s, rig.release(high))
    rig.counting(low)
    rig.becomes(name, "ready")
    stood_min = int(time.time() - held["refused"]["since_s"]) // 60
    assert {part["JobState"] for part in components(rig, low)} == {"RUNNING"}
    (limit,) = limits(rig, low)
    assert limit in {f"00:{minutes}:00" for minutes in range(11, 12 + stood_min)}
    told = "its time limit was raised by"
    rig.until(lambda: told in rig.ctl("scontrol", "show", "job", f"{low}+0"), what="what is told")
    rig.finish(low)


@pytest.mark.soak
def test_a_heterogeneous_job_outlives_its_time_limit(rig: DaemonRig) -> None:
    """It passes while the first component stands still, and Slurm ends neither of them."""
    low = rig.low("-n1", "-t2", ":", "-p", "htc", "-n1", "-t2", start=False)
    rig.counting(low)
    _, high, _ = stopped(rig, low)
    over_s = time.time() + 120 + _LOOKS_S
    rig.until(lambda: time.time() > over_s, 600, "the time at which its limit would be over")
    parts = components(rig, low)
    assert {part["JobState"] for part in parts} == {"RUNNING"}
    # What it has left afterwards is short: a slow machine would need it all to see it go on.
    for part in parts:
        rig.ctl("scontrol", "update", f"JobId={part['JobId']}", "TimeLimit=300")
    rig.release(high)
    rig.counting(low)
    rig.finish(low)


def test_the_other_node_of_a_job_is_kept_for_it(rig: DaemonRig) -> None:
    """It is suspended as a whole, and nobody gets the CPUs of the node that still runs."""
    wide = rig.low("-N2", "-n2", start=False)
    rig.counting(wide)
    name, host = next((n["name"], n["host"]) for n in rig.nodes().values())
    high = rig.high(host)
    rig.becomes(name, "parked")
    other = rig.submit("-p", "htc", "--wrap", "sleep 1")
    rig.until(
        lambda: (
            "Resources" in rig.ctl("squeue", "-h", "-j", other, "-o", "%r")
            or "Nodes" in rig.ctl("squeue", "-h", "-j", other, "-o", "%r")
        )
    )
    assert rig.state(wide) == "SUSPENDED"
    states = rig.node_states()
    assert all("DRAIN" in states[node] for node in rig.nodes())
    assert rig.state(other) == "PENDING"
    rig.release(high)
    rig.counting(wide)
    assert rig.show(wide)["Restarts"] == "0"
    rig.finish(wide)
    rig.until(lambda: rig.state(other) == "COMPLETED")


def test_what_an_admin_suspended_is_not_resumed(rig: DaemonRig) -> None:
    """Its host is taken and given back; it goes on when the admin says so."""
    low = rig.low(start=False)
    rig.counting(low)
    name, host = rig.where(low)
    rig.ctl("scontrol", "suspend", low)
    rig.until(lambda: rig.state(low) == "SUSPENDED")
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(high)
    rig.becomes(name, "ready")
    told = "somebody else had suspended it"
    rig.until(lambda: told in rig.ctl("scontrol", "show", "job", low), what="the owner's word")
    assert rig.state(low) == "SUSPENDED"
    asked = [r.body["t"] for r in rig.journal("intent")]
    assert not {"ResumeJob", "SuspendJob"} & set(asked)
    rig.ctl("scontrol", "resume", low)
    rig.counting(low)
    rig.finish(low)
