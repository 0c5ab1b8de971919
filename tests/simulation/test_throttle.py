"""The rung that takes CPU time away: the host is free at once, and the job never notices."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.cluster import JobState
from backfill.core.fleet import InstanceState
from backfill.core.lifecycle import Phase, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports import RefusedError
from backfill.sim.rehearsal import Rehearsal
from tests.simulation.test_eviction import cluster, policies, ready, running

THROTTLE = RungRule(Rung.THROTTLE, within_s=1.0, for_s=30.0)


def rehearsal(*rungs: RungRule) -> Rehearsal:
    policy = replace(policies(Ladder(rungs)), hosts=("bm1",))
    return Rehearsal(cluster(hosts=("bm1",)), policy, MemoryJournal())


def test_a_throttled_job_stays_running_in_slurm_and_goes_on() -> None:
    """The high-priority job starts beside it; afterwards the instance has its CPUs again."""
    run = rehearsal(THROTTLE)
    sim = run.sim
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: running(run, high), 5)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.THROTTLED, 5)
    assert sim.instance("vn1").state is InstanceState.RUNNING
    assert sim.job(low).state is JobState.RUNNING
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: ready(run, 1), 10)
    assert not sim.instance("vn1").machine.throttled
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_after_its_time_the_next_rung_follows() -> None:
    """A job that needs the host for long gets the rest as well; the return undoes both."""
    run = rehearsal(THROTTLE, RungRule(Rung.PAUSE, within_s=1.0))
    sim = run.sim
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 60.0)
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 60)
    assert sim.job(high).state is JobState.RUNNING
    run.until(lambda: sim.job(low).state is JobState.SUSPENDED, 10)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: ready(run, 1), 20)
    assert not sim.instance("vn1").machine.throttled
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.audit() == []


def test_where_it_cannot_be_done_the_next_rung_follows_at_once() -> None:
    """A host without control groups for CPUs says so once."""
    run = rehearsal(THROTTLE, RungRule(Rung.PAUSE, within_s=1.0))
    sim = run.sim
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    sim.faults.fail("throttle", RefusedError("vn1", "no control group"), times=-1)
    high = sim.submit("batch", 20.0)
    run.until(lambda: running(run, high), 5)
    assert sim.instance("vn1").state is InstanceState.PAUSED
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.audit() == []
