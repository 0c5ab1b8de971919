"""Pilots on demand: sent while rooms are idle and payloads wait, never twice, never more than the cap."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.core.model.fleet import Flavour
from backfill.core.model.pilots import name_of, slot_of
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.supply import Supply
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import RefusedError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death
from tests.simulation.policy_cluster import TWELVE, cluster, ended, play, policies, running

SUPPLY = Supply(
    most=6,
    user="pilot",
    partition="htc",
    script="/pilot.sh",
    keep_s=60.0,
    seen_after_s=10.0,
    shortest_s=600.0,
)
ROOMY = Limits(boots_at_once=12, removals_at_once=12, max_instances=4)


def begun(
    payloads: int, run_s: float = 300.0, jobs: int = 0, **changes: object
) -> tuple[SimulatedWorld, Rehearsal]:
    """A cluster with room for four instances, so many payloads in the pool, and jobs in the queue."""
    sim = cluster()
    for _ in range(payloads):
        sim.pool.add(run_s)
    for _ in range(jobs):
        sim.submit("htc", 600.0)
    supply = replace(SUPPLY, **changes)  # type: ignore[arg-type]
    return sim, play(sim, policies(supply=supply, limits=ROOMY))


def pilots(sim: SimulatedWorld) -> list[Job]:
    seen = sim.slurm.observe().jobs.values()
    return [job for job in seen if slot_of(job.name, job.comment) is not None]


def alive(sim: SimulatedWorld) -> list[Job]:
    return [job for job in pilots(sim) if (job.state not in ENDED or job.holds_nodes)]


def said(run: Rehearsal) -> list[str]:
    return [why(refusal) for refusal in run.cycle.last.refusals if refusal.wanted is Goal.PILOT]


def done(sim: SimulatedWorld) -> int:
    return sum(run.done for run in sim.pool.observe().runs)


def test_payloads_are_done_by_pilots_that_nobody_else_sends() -> None:
    """As many at a time as there is room, until nothing waits; then none is left in the queue."""
    sim, run = begun(10)
    run.until(lambda: len(alive(sim)) == 4, 60)
    assert all(job.user == "pilot" and job.partition == "htc" for job in pilots(sim))
    run.until(lambda: done(sim) == 10, 3000)
    run.run(300.0)
    assert alive(sim) == []
    assert sim.audit() == []


def test_no_more_than_payloads_wait() -> None:
    """Two payloads are two pilots, however much room there is; a pool that has them at work is no reason."""
    sim, run = begun(2)
    run.until(lambda: len(alive(sim)) == 2, 60)
    run.run(200.0)
    assert len(pilots(sim)) == 2


def test_a_slot_that_slurm_refuses_does_not_keep_the_others_back() -> None:
    """The rooms are filled by the next ones; where several are refused, the rest is not tried."""
    sim, run = begun(20)
    for slot in (1, 3):  # a payload that holds its pilot's rights submits jobs of such names
        sim.submit("batch", 5.0, name=name_of(slot), user="pilot", held=True, held_by_owner=True)
    run.until(lambda: len(alive(sim)) == 4, 120)
    assert sorted(slot_of(job.name, job.comment) or 0 for job in alive(sim)) == [2, 4, 5, 6]
    sim, run = begun(20)
    sim.faults.fail("submit_pilot", RefusedError("sbatch", "no"), times=-1)
    run.run(600.0)
    tried = {r.subject for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "SubmitPilot"}
    assert len(tried) <= 4 + SUPPLY.failures


def test_however_many_names_are_taken_the_next_slots_are_used() -> None:
    """More than `failures` of them: they are said, with the remedy, and used again once they are free."""
    sim, run = begun(20, most=8)
    taken = [sim.submit("batch", 5.0, name=name_of(slot), user="pilot", held=True) for slot in (1, 2, 3, 4)]
    sim.submit("batch", 900.0, name=name_of(5), user="ann")
    run.until(lambda: any(f"job {taken[3]} of user pilot has its name" in text for text in said(run)), 60)
    run.until(lambda: len(alive(sim)) == 4, 120)
    assert sorted(slot_of(job.name, job.comment) or 0 for job in alive(sim)) == [5, 6, 7, 8]
    for job in taken[:3]:
        sim.slurm.release_job(job)
    run.until(lambda: all(sim.job(job).state in ENDED for job in taken[:3]), 60)
    run.until(lambda: {1, 2, 3} <= {slot_of(job.name, job.comment) for job in pilots(sim)}, 900)


def test_never_more_than_the_cap() -> None:
    """At no time."""
    sim, run = begun(20, most=2)
    most = 0
    for _ in range(300):
        run.run(2.0)
        most = max(most, len(alive(sim)))
    assert most == 2


def test_other_jobs_take_the_rooms_first() -> None:
    """A pilot is sent only for what they leave."""
    sim, run = begun(10, jobs=3)
    for _ in range(40):
        run.run(5.0)
        assert len(alive(sim)) <= 1
    assert len(alive(sim)) == 1


def test_a_pool_that_does_not_answer_means_no_new_pilots() -> None:
    """It is said why; what waits or runs is left alone, and it goes on when the pool answers again."""
    sim, run = begun(10)
    run.until(lambda: len(alive(sim)) == 4, 60)
    sim.pool.silent = True
    run.run(1000.0)
    before = len(pilots(sim))
    assert any("the pool does not answer: the simulated pool: does not answer" in text for text in said(run))
    run.run(100.0)
    assert len(alive(sim)) == 0
    assert len(pilots(sim)) <= before
    sim.pool.silent = False
    run.until(lambda: bool(alive(sim)), 60)


def test_a_pilot_that_nobody_needs_any_more_is_withdrawn() -> None:
    """The rooms were taken by others before it began: it leaves the queue, never begun, nothing lost."""
    sim, run = begun(4, run_s=100.0)
    for host in ("bm1", "bm2"):
        sim.submit("batch", 400.0, required_nodes=(host,), cpus=4, exclusive=True)
    run.until(lambda: all(not job.nodes for job in alive(sim)), 60)
    run.run(200.0)
    assert [job for job in alive(sim) if job.state is JobState.PENDING] == []
    assert sim.audit() == []


def test_a_pilot_may_run_for_as_long_as_its_room_is_free() -> None:
    """A host that is wanted soon gets a short one, and one that is wanted too soon gets none."""
    sim = cluster()
    for _ in range(9):
        sim.pool.add(300.0)
    sim.slurm.announce("bm1", planned_s=sim.now_s + 3000.0)
    sim.slurm.announce("bm2", planned_s=sim.now_s + 400.0)
    run = play(sim, policies(supply=SUPPLY, limits=ROOMY))
    run.until(lambda: len(alive(sim)) == 4, 60)
    limits = [job.time_limit_s for job in alive(sim)]
    assert all(limit_s is not None and 2400.0 <= limit_s <= 3000.0 for limit_s in limits), limits


def test_a_pilot_is_told_when_its_host_is_wanted_after_all() -> None:
    """Its Machine/Job Features say so, once; a time that moves is told again."""
    sim, run = begun(1, run_s=5000.0)
    run.until(lambda: any(job.state is JobState.RUNNING for job in alive(sim)), 120)
    (job,) = alive(sim)
    run.run(10.0)
    assert run.world.pilots.told == {}
    host = run.world.managed[job.nodes[0]].host
    wanted_s = sim.now_s + 1000.0
    sim.slurm.announce(host, planned_s=wanted_s)
    run.run(20.0)
    assert run.world.pilots.told[job.id][1] == pytest.approx(wanted_s, abs=1.0)
    told = list(run.journal.read(types=("PilotTold",)))
    run.run(100.0)
    assert list(run.journal.read(types=("PilotTold",))) == told
    sim.slurm.announce(host, planned_s=wanted_s + 500.0)
    run.run(20.0)
    assert run.world.pilots.told[job.id][1] == pytest.approx(wanted_s + 500.0, abs=1.0)


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_daemon_that_is_killed_sends_none_twice(at: int) -> None:
    """Killed at any of its steps and started again: no slot has two pilots, no payload is lost."""
    sim, run = begun(6)
    death = Death(run, at, down_s=15.0)
    for _ in range(400):
        run.run(5.0)
        slots = [slot_of(job.name, job.comment) for job in alive(sim)]
        assert len(slots) == len(set(slots)) <= SUPPLY.most
    assert done(sim) == 6
    assert sum(not run_.done for run_ in sim.pool.observe().runs) == 0
    assert sim.audit() == []
    assert death.at_s is not None


def test_rooms_that_other_jobs_take_for_their_memory_get_no_pilot() -> None:
    """Three jobs of one CPU each would fit into one instance of four, but for what memory they want."""
    sim = cluster(cpus=8)
    for _ in range(9):
        sim.pool.add(300.0)
    lows = [sim.submit("htc", 5000.0, memory_mb=900) for _ in range(3)]
    four = replace(TWELVE, flavour=Flavour(cpus=4, memory_mb=1024))
    run = play(sim, policies(supply=SUPPLY, limits=ROOMY, instances=four))
    run.until(lambda: running(sim, *lows), 60)
    run.until(lambda: bool(alive(sim)), 60)
    run.run(300.0)
    assert len(pilots(sim)) == 1
    assert sim.audit() == []


def test_an_idle_instance_too_small_for_a_pilot_is_no_room() -> None:
    """It is of the flavour before: a pilot would wait for it for ever."""
    sim = cluster(cpus=4)
    first = sim.submit("htc", 5.0)
    rules = policies(limits=replace(ROOMY, max_instances=1), scale=Scale(idle_s=1000.0))
    run = play(sim, rules)
    run.until(lambda: ended(sim, first), 60)
    two = replace(TWELVE, flavour=Flavour(cpus=2, memory_mb=512))
    run.policies = run.cycle.policies = replace(rules, supply=SUPPLY, instances=two)
    sim.pool.add(300.0)
    run.run(100.0)
    assert pilots(sim) == []
    assert any("no room is idle" in sentence for sentence in said(run))
