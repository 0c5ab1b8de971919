"""Somebody sets the machine's clock: nothing is over because of it, whatever state it is in."""

from __future__ import annotations

import pytest

from backfill.core.model.changes import ClockSet, JobSeen
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.replay.journal import replay_journal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.property.days import HOSTS, policies

HOUR_S = 3600.0
STEPS = (6 * HOUR_S, -6 * HOUR_S, 87600 * HOUR_S)


def parked(
    rungs: tuple[RungRule, ...] = Ladder().rungs, **more: object
) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Six low-priority jobs on three hosts that other jobs have got since."""
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    for host in HOSTS:
        sim.add_host(host, cpus=2, features=("metal",))
    run = Rehearsal(sim, policies(rungs, scale=Scale(idle_s=600.0), **more), MemoryJournal())
    lows = [sim.submit("htc", 900.0) for _ in range(6)]
    run.until(lambda: all(_runs(sim, job) for job in lows), 120.0)
    for host in HOSTS:
        sim.submit("batch", 3000.0, required_nodes=(host,))
    run.until(lambda: run.world.fleet.count_in(Phase.PARKED) == 6, 120.0)
    return sim, run, lows


def _runs(sim: SimulatedWorld, job: str) -> bool:
    shown = sim.job(job)
    return shown.state is JobState.RUNNING and "CONFIGURING" not in shown.flags


def intact(sim: SimulatedWorld, run: Rehearsal, lows: list[str]) -> None:
    """Nothing was lost, and all goes on where it stopped."""
    assert run.world.fleet.count_in(Phase.PARKED) == 6
    assert [sim.job(job).restarts for job in lows] == [0] * 6
    run.until(lambda: all(sim.job(job).state is JobState.COMPLETED for job in lows), 6000.0)
    assert [sim.job(job).restarts for job in lows] == [0] * 6
    assert sim.audit() == []
    assert sim.gaps() == []
    assert replay_journal(run.journal.read(), run.policies).differences == []


@pytest.mark.parametrize("by_s", STEPS)
def test_the_clock_is_set_while_work_is_saved(by_s: float) -> None:
    """The defect: set forward by 6 h, `for_s` was over for everybody, and all were requeued."""
    sim, run, lows = parked()
    run.run(200.0)
    assert {i.state for h in sim.hosts.values() for i in h.instances.values()} == {InstanceState.SUSPENDED}
    sim.set_clock(by_s)
    run.run(150.0)
    told = [decode(r.body) for r in run.journal.read(types=("ClockSet",))]
    assert [(type(one), one.ahead_s) for one in told] == [(ClockSet, -by_s)]
    intact(sim, run, lows)


@pytest.mark.parametrize("by_s", STEPS)
def test_the_clock_is_set_while_the_daemon_is_down(by_s: float) -> None:
    """The machine's uptime tells how long it was down."""
    sim, run, lows = parked()
    run.run(200.0)
    since_s = {m.name: sim.now_s - m.since_s for m in run.world.managed.values()}
    run.kill()
    sim.step_to(sim.now_s + 10.0)
    sim.set_clock(by_s)
    sim.step_to(sim.now_s + 10.0)
    run.start()
    assert run.now_s == sim.now_s + by_s
    for node in run.world.managed.values():
        assert run.now_s - node.since_s == pytest.approx(since_s[node.name] + 20.0)
    run.run(150.0)
    intact(sim, run, lows)


def test_the_clock_is_set_before_and_while_the_daemon_is_down() -> None:
    """The time of one life is not that of the next one, and both are right."""
    sim, run, lows = parked()
    since_s = {m.name: m.since_s for m in run.world.managed.values()}
    for by_s in (6 * HOUR_S, -48 * HOUR_S, 500.0):
        sim.set_clock(by_s)
        run.run(20.0)
        run.kill()
        sim.set_clock(-by_s / 2)
        sim.step_to(sim.now_s + 5.0)
        run.start()
        run.run(20.0)
    for node in run.world.managed.values():
        assert run.now_s - node.since_s == pytest.approx(sim.now_s - since_s[node.name])
    intact(sim, run, lows)


@pytest.mark.parametrize("by_s", [0.0, *STEPS])
def test_the_machine_is_booted_while_work_is_saved(by_s: float) -> None:
    """Nobody can know how long it was off: no time has passed for anybody's deadline."""
    sim, run, lows = parked()
    run.run(200.0)
    since_s = {m.name: run.now_s - m.since_s for m in run.world.managed.values()}
    run.kill()
    sim.step_to(sim.now_s + 400.0)
    sim.reboot_clock(by_s)
    run.start()
    for node in run.world.managed.values():
        waited_s = run.now_s - node.since_s
        assert since_s[node.name] - 300.0 <= waited_s <= since_s[node.name] + 1.0
    run.run(150.0)
    intact(sim, run, lows)


def test_budgets_go_by_the_clock_on_the_wall() -> None:
    """Who says eight o'clock means what the clock shows, also after it was put right."""
    nobody = Budgets((Budget("0", schedule="0 12 * * *", duration_s=HOUR_S),))
    sim = SimulatedWorld(start_s=1_700_006_400.0)  # midnight, UTC
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_host("bm1", cpus=2, features=("metal",))
    rungs = (RungRule(Rung.PAUSE, 1.0), RungRule(Rung.REQUEUE))
    run = Rehearsal(sim, policies(rungs, budgets=nobody), MemoryJournal())
    job = sim.submit("htc", 20000.0)
    run.until(lambda: _runs(sim, job), 60.0)
    sim.set_clock(12 * HOUR_S)
    run.run(60.0)
    assert run.world.fleet.count_in(Phase.READY) == 0
    sim.set_clock(-12 * HOUR_S)
    run.until(lambda: run.world.fleet.count_in(Phase.READY) == 1, 120.0)
    run.run(HOUR_S)
    assert run.world.fleet.count_in(Phase.READY) == 1
    assert sim.audit() == []


@pytest.mark.parametrize("by_s", STEPS)
def test_each_way_of_reading_a_job_tells_the_same_times(by_s: float) -> None:
    """Of one job after a call about it, as of all jobs: by our time, also after the clock was set."""
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    sim.add_host("bm1", cpus=2, features=("metal",))
    run = Rehearsal(sim, policies(Ladder().rungs, hosts=("bm1",)), MemoryJournal())
    low = sim.submit("htc", 300.0)
    run.until(lambda: _runs(sim, low), 120.0)
    run.run(5.0)
    sim.set_clock(by_s)
    run.run(10.0)
    began_s = run.world.jobs[low].start_s
    before = len(list(run.journal.read()))
    sim.submit("batch", 20.0, required_nodes=("bm1",))
    run.until(lambda: sim.job(low).state is JobState.SUSPENDED, 60.0)
    run.until(lambda: _runs(sim, low), 120.0)
    later = [decode(r.body) for r in list(run.journal.read())[before:] if r.kind == "change"]
    told = [change.job for change in later if isinstance(change, JobSeen) and change.job.id == low]
    assert {job.start_s for job in told} == {began_s}
