"""The rung that takes CPU time away: the host is free at once, and the job never notices."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
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


def test_what_a_budget_throttled_stays_so_while_it_holds() -> None:
    """Given its CPUs back in the same breath, it would be throttled again, and so on for ever."""
    sim = cluster(hosts=("bm1",))
    budget = Budgets((Budget("1", schedule="* * * * *", duration_s=30.0),))
    ladder = Ladder((replace(THROTTLE, for_s=None), RungRule(Rung.PAUSE)))
    policy = replace(policies(ladder), hosts=("bm1",), budgets=budget)
    run = Rehearsal(sim, policy, MemoryJournal())
    run.until(lambda: run.world.now_s % 60.0 >= 31.0, 70)
    lows = [sim.submit("htc", 100.0) for _ in range(2)]
    run.until(lambda: running(run, *lows), 28)
    run.until(lambda: any(m.phase is Phase.THROTTLED for m in run.world.managed.values()), 60)
    began_s = run.world.now_s
    run.until(lambda: ready(run, 2), 60)
    assert run.world.now_s - began_s > 25.0
    steps = [r for r in run.journal.read() if r.kind == "intent" and "Throttle" in str(r.body["t"])]
    assert len(steps) == 2
    assert sim.audit() == []


def test_one_that_somebody_paused_while_it_was_throttled_stands_aside() -> None:
    """Its rung is to be slow, and it stands still: the plan once went round between the two."""
    run = rehearsal(THROTTLE, RungRule(Rung.PAUSE, within_s=1.0))
    sim = run.sim
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: running(run, high), 5)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.THROTTLED, 5)
    sim.provider.pause("bm1", "vn1")
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 10)
    assert sim.job(low).state is JobState.SUSPENDED
    assert len(run.world.managed["vn1"].reason) < 200
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert not sim.instance("vn1").machine.throttled
    assert sim.audit() == []


def test_one_that_slurm_never_got_goes_when_its_host_is_wanted() -> None:
    """Its host is given away while it boots, and the call that was to make its node has failed."""
    run = rehearsal(THROTTLE)
    sim = run.sim
    order = sim.faults.fail("create_node", UnreachableError("slurm", "no answer"), times=-1)
    low = sim.submit("htc", 20.0)
    run.until(lambda: "vn1" in sim.hosts["bm1"].instances, 30)
    assert not sim.slurm.read_nodes(["vn1"])
    high = sim.submit("batch", 60.0)
    run.until(lambda: running(run, high), 5)
    order.end()
    run.until(lambda: not run.world.managed, 20)
    assert sim.job(high).state is JobState.RUNNING
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 100)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.audit() == []


def test_by_an_old_journal_it_boots_and_it_was_throttled_at_work() -> None:
    """It cannot prove itself now, and is not removed with its job: that goes on with all of its CPUs."""
    run = rehearsal(THROTTLE)
    sim, old = run.sim, MemoryJournal()
    low = sim.submit("htc", 100.0)
    run.until(lambda: "vn1" in run.world.managed, 30)
    old.append(list(run.journal.read()))
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: sim.instance("vn1").machine.throttled, 30)
    run.kill()
    sim.stop_file_server()
    run.run(30.0)
    assert sim.job(high).state is JobState.COMPLETED
    anew = Rehearsal(sim, run.policies, old)
    anew.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []
