"""One of several jobs in an instance began anew: its copy never runs again, the others are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code, Goal, Refusal
from backfill.core.model.sentences import line
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

PAUSE = RungRule(Rung.PAUSE, within_s=30.0)
PAUSE_ONLY = Ladder((PAUSE,))
TO_DISK = Ladder((replace(PAUSE, for_s=20.0), RungRule(Rung.SUSPEND, within_s=60.0)))
ANEW = Ladder((replace(PAUSE, for_s=300.0), RungRule(Rung.REQUEUE)))


def two_jobs(
    ladder: Ladder = PAUSE_ONLY, *, requeue: bool = True, high_s: float = 30.0
) -> tuple[SimulatedWorld, Rehearsal, str, str, str]:
    """Two jobs stand still in one instance for a third; there is room for more on a second host."""
    sim = cluster(cpus=2)
    rules = policies(ladder=ladder, scale=Scale(idle_s=600))
    shape = replace(rules.instances, flavour=Flavour(cpus=2, memory_mb=256))
    run = play(sim, replace(rules, instances=shape))
    one, other = sim.submit("htc", 300.0), sim.submit("htc", 300.0, requeue=requeue)
    run.until(lambda: running(sim, one, other), 60)
    assert set(run.world.managed) == {"vn1"}
    host = run.world.managed["vn1"].host
    high = sim.submit("batch", high_s, required_nodes=(host,))
    run.until(lambda: phases(run, Phase.PARKED) == {"vn1"}, 30)
    return sim, run, one, other, high


def kept(run: Rehearsal) -> list[Refusal]:
    found = run.cycle.last.refusals
    return [r for r in found if r.code is Code.COPY_BESIDE and r.wanted is Goal.RETURN_TO]


def intact(sim: SimulatedWorld, job: str, restart: int = 0) -> bool:
    seen = sim.job(job)
    return (seen.state, seen.restarts) == (JobState.SUSPENDED, restart)


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize(
    ("ladder", "state"),
    [(PAUSE_ONLY, InstanceState.PAUSED), (TO_DISK, InstanceState.SUSPENDED)],
    ids=["pause", "to disk"],
)
def test_the_other_stands_still_and_an_admin_is_told(
    ladder: Ladder, state: InstanceState, requeue: bool
) -> None:
    """Its host is free again for an hour: the stale copy has not run, the intact one is there.

    Nor does the new run begin: Slurm waits for the node's word that the old one has ended.
    """
    sim, run, stale, other, high = two_jobs(ladder, requeue=requeue)
    sim.requeue_behind(stale, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    run.run(3600.0)
    assert intact(sim, other)
    assert "COMPLETING" in sim.job(stale).flags
    assert sim.instance("vn1").state is state
    (told,) = kept(run)
    command = f"scontrol requeue {other}" if requeue else f"scancel {other}"
    assert command in line(told)
    assert f"job {stale} on the same node was put back" in sim.slurm.admin_comment(other)
    assert sim.audit() == []


def test_a_person_ends_the_wait_by_the_command_that_is_told() -> None:
    """`scontrol requeue` of the other: no copy in it is of any use, so it goes, and both jobs end."""
    sim, run, stale, other, high = two_jobs()
    sim.requeue_behind(stale, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    sim.requeue_behind(other, delay_s=5.0)
    run.until(lambda: ended(sim, stale, other), 900)
    assert sim.job(other).restarts == 1
    run.until(lambda: not run.world.managed, 1500)
    assert sim.audit() == []


def test_the_wait_ends_with_the_other_job() -> None:
    """Its owner cancels it, as it may not start over."""
    sim, run, stale, other, high = two_jobs(requeue=False)
    sim.requeue_behind(stale, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    sim.user_cancel(other)
    run.until(lambda: ended(sim, stale), 900)
    run.until(lambda: not run.world.managed, 1500)
    assert sim.audit() == []


@pytest.mark.parametrize("requeue", [True, False])
def test_the_ladder_says_for_how_long_it_stands_still(requeue: bool) -> None:
    """Five minutes, and then it starts over, if it may: nothing else can bring it on."""
    sim, run, stale, other, high = two_jobs(ANEW, requeue=requeue)
    sim.requeue_behind(stale, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    run.run(200.0)
    assert intact(sim, other)
    if requeue:
        run.until(lambda: sim.job(other).restarts == 1, 200)
        run.until(lambda: ended(sim, stale, other), 1500)
    else:
        run.run(1500.0)
        assert intact(sim, other)
    assert sim.audit() == []


@pytest.mark.parametrize("after_s", [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5])
def test_one_begins_anew_while_its_instance_comes_back(after_s: float) -> None:
    """At whichever step: nothing runs twice, and the other loses nothing."""
    sim, run, stale, other, _ = two_jobs()
    sim.faults.fail("wake", UnreachableError("vn1", "its agent is silent"), times=2)
    run.until(lambda: bool(phases(run, Phase.RETURNING)), 100)
    run.run(after_s)
    sim.requeue_behind(stale, delay_s=5.0)
    run.run(2000.0)
    assert sim.job(other).restarts == 0
    assert intact(sim, other) or ended(sim, other)
    if intact(sim, other):
        sim.requeue_behind(other, delay_s=5.0)
    run.until(lambda: ended(sim, stale, other), 900)
    assert sim.audit() == []


def test_a_daemon_that_starts_anew_keeps_it_as_well() -> None:
    """Killed while it stands apart, and while the news of the requeue is on its way."""
    for wait_s in (0.0, 0.5, 5.0, 60.0):
        sim, run, stale, other, high = two_jobs(requeue=False)
        sim.requeue_behind(stale, delay_s=5.0)
        run.run(wait_s)
        run.kill()
        journal = run.journal
        assert isinstance(journal, MemoryJournal)
        anew = Rehearsal(sim, run.policies, journal)
        anew.until(lambda: ended(sim, high), 1500)  # noqa: B023 - used at once
        anew.run(600.0)
        assert intact(sim, other)
        assert sim.audit() == []
        anew.kill()


def test_it_stays_suspended_and_its_node_closed_whatever_others_do() -> None:
    """An admin resumes it and lifts the drain: its memory cannot run, so both are put right."""
    sim, run, stale, other, high = two_jobs()
    sim.requeue_behind(stale, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    sim.slurm.resume_job(other)
    sim.admin_drain("vn1", "")
    run.run(30.0)
    assert intact(sim, other)
    assert sim.slurm.observe_nodes(["vn1"]).nodes["vn1"].drained
    assert sim.audit() == []


_READINGS = ("observe", "observe_nodes", "read_jobs", "read_nodes")


def test_a_job_that_came_to_a_stopped_instance_left_no_copy() -> None:
    """Slurm cannot be read as the host is taken, so that the node stays open, and gives it one more job.

    It could not be launched there: the job beside it goes on.
    """
    sim = cluster(cpus=2)
    rules = policies(ladder=ANEW, scale=Scale(idle_s=600))
    shape = replace(rules.instances, flavour=Flavour(cpus=2, memory_mb=256))
    run = play(sim, replace(rules, instances=shape))
    one = sim.submit("htc", 900.0)
    run.until(lambda: running(sim, one), 60)
    host = run.world.managed["vn1"].host
    run.run(30.0)
    error = UnreachableError("slurmctld", "socket timed out")
    orders = [sim.faults.fail(call, error, times=-1) for call in _READINGS]
    run.run(run.policies.limits.stale_after_s + 10.0)
    sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 30)
    run.run(5.0)
    late = sim.submit("htc", 20.0)
    run.until(lambda: sim.job(late).nodes == ("vn1",), 30)
    for order in orders:
        order.end()
    run.until(lambda: {held.id for held in run.world.managed["vn1"].held} == {one, late}, 30)
    run.until(lambda: sim.job(late).restarts == 1, 60)
    run.until(lambda: ended(sim, one, late), 1500)
    assert sim.job(one).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("anew", [True, False])
def test_a_job_that_began_by_a_clock_that_was_set_since_left_a_copy(anew: bool) -> None:
    """By Slurm's word it began an hour after its instance stood still: by the clock of then."""
    sim = cluster(cpus=2)
    rules = policies(ladder=PAUSE_ONLY, scale=Scale(idle_s=600))
    shape = replace(rules.instances, flavour=Flavour(cpus=2, memory_mb=256))
    run = play(sim, replace(rules, instances=shape))
    one, other = sim.submit("htc", 300.0), sim.submit("htc", 300.0)
    run.until(lambda: running(sim, one, other), 60)
    run.run(10.0)
    host = run.world.managed["vn1"].host
    sim.set_clock(-3600.0)
    if anew:
        run.kill()
        journal = run.journal
        assert isinstance(journal, MemoryJournal)
        run = Rehearsal(sim, run.policies, journal)
    run.run(10.0)
    high = sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: phases(run, Phase.PARKED) == {"vn1"}, 30)
    sim.requeue_behind(one, delay_s=5.0)
    run.until(lambda: ended(sim, high), 900)
    run.run(600.0)
    assert intact(sim, other)
    assert len(kept(run)) == 1
    assert sim.audit() == []
