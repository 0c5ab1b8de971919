"""What the live stage reads from Slurm and from guests, and which scenarios fit a lab."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.scenario import HostGroup, Scenario
from backfill.ui.commands.demo_lab import allocations, guest_marks, unfit

LOG = """\
[2026-11-21T03:54:09.651] _slurm_rpc_submit_batch_job: JobId=1 InitPrio=4294901759 usec=208
[2026-11-21T03:54:11.588] sched: Allocate JobId=1 NodeList=bm1 #CPUs=2 Partition=batch
[2026-11-21T03:54:12.105] _job_complete: JobId=1 WEXITSTATUS 0
[2026-11-21T03:54:20.250] sched/backfill: _start_job: Started JobId=12 in batch on bm1
[2026-11-21T03:54:31.000] sched: Allocate JobId=12 NodeList=bm2 #CPUs=2 Partition=batch
"""
CONSOLE = (
    "BACKFILL-STEP kernel 2.51\r\nrandom: crng init done\r\nBACKFILL-STEP seed 3.12\r\n"
    "BACKFILL-READY 8.01\r\n"
)


@pytest.fixture
def scenario() -> Scenario:
    return load_scenario(Path(__file__).parents[2] / "scenarios/first_day.yaml")


def test_allocations_come_from_both_schedulers() -> None:
    """The main and the backfill scheduler write different lines; the last one of a job counts."""
    found = allocations(LOG)
    assert list(found) == ["1", "12"]
    assert found["1"] == datetime(2026, 11, 21, 3, 54, 11, 588000).astimezone().timestamp()
    assert found["12"] - found["1"] == pytest.approx(19.412)


def test_a_guest_tells_of_its_start() -> None:
    """Steps with their times, whatever else is on the console."""
    assert guest_marks(CONSOLE) == [["kernel", 2.51], ["seed", 3.12]]


def test_the_shipped_scenario_fits_a_lab(scenario: Scenario) -> None:
    """The demo's own scenario can be played live."""
    assert unfit(scenario) is None


def test_what_a_lab_cannot_be_is_said(scenario: Scenario) -> None:
    """Other names, unequal hosts and other partitions are refused in words."""
    named = replace(scenario, hosts=(HostGroup(("node1",)),))
    assert str(unfit(named)).startswith("the hosts of a lab are called bm1")
    unequal = replace(scenario, hosts=(HostGroup(("bm1",)), HostGroup(("bm2",), cpus=4)))
    assert unfit(unequal) == "the hosts of a lab are all equal"
    jobs = tuple(replace(e, partition="gpu") for e in scenario.jobs)
    assert str(unfit(replace(scenario, jobs=jobs))).startswith("a lab has the partitions htc")
