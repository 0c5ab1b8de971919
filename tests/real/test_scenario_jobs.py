"""High-priority work in every form that Slurm knows, with the hook on the controller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]

POLICY: dict[str, Any] = {
    "ladder": [PAUSE, REQUEUE],
    "limits": {"max_instances": 2, "max_per_host": 1},
    "scale": {"idle_s": 600, "warm": 2},
}
# Heterogeneous jobs are started by the backfill scheduler only, which takes its time otherwise.
QUICK = "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=2"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("jobs", extra_conf=(QUICK,)) as rig:
        rig.start(**POLICY)
        yield rig


@pytest.fixture
def lows(rig: DaemonRig) -> dict[str, str]:
    """One counting job on every host, by host."""
    jobs = [rig.low(start=False) for _ in rig.lab.hosts]
    for job in jobs:
        rig.counting(job)
    return {rig.where(job)[1]: job for job in jobs}


def came_back(rig: DaemonRig, *jobs: str) -> None:
    """All these counting jobs go on, were never requeued, and end once."""
    rig.finish(*jobs)
    assert {rig.show(job)["Restarts"] for job in jobs} == {"0"}


def test_array_tasks_share_one_eviction(rig: DaemonRig, lows: dict[str, str]) -> None:
    """Two tasks on one host: two hooks at once, one pause, and the return after the last task."""
    first = rig.high("bm1", "--array=1-2", start=False)
    tasks = (first, str(int(first) + 1))
    began_s = min(rig.started(task) for task in tasks)
    pauses = [r for r in rig.journal("intent") if r.body["t"] == "PauseInstance"]
    assert len(pauses) == 1
    rig.release(tasks[0])
    rig.assert_silent(lows["bm1"], began_s, rig.release(tasks[1]))
    came_back(rig, *lows.values())


def test_wide_job_takes_both_hosts(rig: DaemonRig, lows: dict[str, str]) -> None:
    """A job on two nodes starts when both of them are free."""
    high = rig.high("bm[1-2]", "-N", "2")
    began_s = rig.started(high)
    both_given_back(rig, lows)
    ended_s = rig.release(high)
    for low in lows.values():
        rig.assert_silent(low, began_s, ended_s)
    came_back(rig, *lows.values())


def test_heterogeneous_job_takes_both_hosts(rig: DaemonRig, lows: dict[str, str]) -> None:
    """Each component has a hook of its own; both hosts are given back."""
    high = rig.high("bm1", "-n", "1", ":", "-p", "batch", "-w", "bm2", "-n", "1")
    both_given_back(rig, lows)
    rig.release(high)
    came_back(rig, *lows.values())


def both_given_back(rig: DaemonRig, lows: dict[str, str]) -> None:
    """Both hosts' instances stand still, and Slurm knows of their jobs that they do."""
    rig.until(lambda: all(taken(rig, host) for host in lows), what="both hosts given back")
    assert all(rig.state(low) == "SUSPENDED" for low in lows.values())


def taken(rig: DaemonRig, host: str) -> bool:
    """Whether the instance of this host stands still and is written down as parked."""
    return "parked" in {n["phase"] for n in rig.nodes().values() if n["host"] == host}


@pytest.mark.parametrize("tool", ["srun", "salloc"])
def test_interactive_work_evicts(rig: DaemonRig, lows: dict[str, str], tool: str) -> None:
    """srun's task, and salloc's command, find the host silent."""
    began_s, ended_s = rig.interactive(tool, "bm1")
    rig.assert_silent(lows["bm1"], began_s, ended_s)
    assert len(rig.words_at_s(lows["bm2"])) > 3
    came_back(rig, *lows.values())
