"""What stood still and is stale never runs again, by whichever way it would come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.observe import node_changes
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_eviction import cluster, policies, ready, running

PAUSE_ONLY = Ladder((RungRule(Rung.PAUSE, within_s=30.0),))


def one_host(cpus: int = 1) -> PolicySet:
    """One host with instances of so many CPUs."""
    rules = policies(PAUSE_ONLY)
    shape = replace(rules.instances, flavour=Flavour(cpus=cpus, memory_mb=256))
    return replace(rules, hosts=("bm1",), instances=shape)


def two_jobs_parked() -> tuple[SimulatedWorld, Rehearsal, list[str], str]:
    """Two jobs stand still in one instance for a third."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, one_host(cpus=2), MemoryJournal())
    lows = [sim.submit("htc", 200.0) for _ in range(2)]
    run.until(lambda: running(run, *lows), 60)
    assert len(run.world.managed) == 1
    high = sim.submit("batch", 60.0)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 10)
    return sim, run, lows, high


def test_a_job_that_left_its_node_is_not_taken_for_one_that_ended() -> None:
    """A fast look at a node shows who is not there any more, not why: the fence asks by name."""
    sim, run, (requeued, held), high = two_jobs_parked()
    sim.requeue_behind(requeued, delay_s=5.0)
    # A look at the node that was on its way while the last of its jobs was being suspended.
    run.cycle.take(node_changes(run.world, ("vn1",), sim.slurm.observe_nodes(["vn1"])))
    run.cycle.decide()
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 100)
    run.run(60.0)
    assert (sim.job(held).state, sim.job(held).restarts) == (JobState.SUSPENDED, 0)
    sim.requeue_behind(held, delay_s=5.0)
    run.until(lambda: all(sim.job(j).state is JobState.COMPLETED for j in (requeued, held)), 900)
    assert sim.audit() == []


def test_a_stale_copy_that_somebody_lets_run_is_stopped_before_its_end_is_certain() -> None:
    """Its end may wait for hours, for a limit of ours; two runs at once may not."""
    sim = cluster(hosts=("bm1", "bm2"))
    rules = replace(policies(), hosts=("bm1", "bm2"), limits=Limits(destroys_per_hour=0))
    run = Rehearsal(sim, rules, MemoryJournal())
    low = sim.submit("htc", 900.0)
    run.until(lambda: running(run, low), 60)
    (old,) = sim.job(low).nodes
    host = run.world.managed[old].host
    high = sim.submit("batch", 60.0, required_nodes=(host,))
    run.until(lambda: run.world.managed[old].phase is Phase.PARKED, 60)
    sim.slurm.set_down(old, "admin: look")  # which begins the job anew
    run.until(lambda: sim.job(low).restarts == 1 and running(run, low), 300)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 300)
    run.run(20.0)
    sim.provider.thaw(host, old)
    run.until(lambda: sim.hosts[host].instances[old].state is InstanceState.PAUSED, 5)
    run.run(60.0)
    assert sim.hosts[host].instances[old].state is InstanceState.PAUSED
    assert sim.job(low).state is JobState.RUNNING


def test_a_job_that_ended_keeps_nothing_from_the_others() -> None:
    """One of two is cancelled while both stand still: the other goes on where it was."""
    sim, run, (cancelled, held), high = two_jobs_parked()
    sim.user_cancel(cancelled)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 100)
    run.until(lambda: sim.job(held).state is JobState.COMPLETED, 300)
    assert sim.job(held).restarts == 0
    assert sim.audit() == []


def test_a_pause_that_ends_after_its_reason_is_followed_by_the_fence() -> None:
    """The host is given back while the pause hangs, and meanwhile Slurm requeues the job."""
    sim = cluster(hosts=("bm1",))
    slow = replace(StepCosts(), pause_s=5.0)
    run = Rehearsal(sim, one_host(), MemoryJournal(), slow)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 60.0)
    run.until(lambda: run.world.running("PauseInstance:vn1:1"), 5)
    sim.user_cancel(high)
    run.until(lambda: not run.world.taken("bm1"), 5)
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 10)
    sim.requeue_behind(low, delay_s=0.0)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.audit() == []
    assert ready(run, 1) or not run.world.managed


def test_a_shorter_ladder_does_not_throw_away_what_waits_on_a_later_rung() -> None:
    """The policy file is replaced while an instance is on disk by the second rung of three."""
    sim = cluster(hosts=("bm1",))
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=2.0),
            RungRule(Rung.SUSPEND, within_s=60.0, for_s=3600.0),
            RungRule(Rung.REQUEUE, within_s=60.0),
        )
    )
    run = Rehearsal(sim, replace(one_host(), ladder=ladder), MemoryJournal())
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 60.0)
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 30)
    shorter = Ladder((RungRule(Rung.SUSPEND, within_s=60.0, for_s=3600.0),))
    run.cycle.policies = replace(run.policies, ladder=shorter)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 100)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize(
    ("late", "slow"),
    [
        ("ResumeJob:vn1:1:1", replace(StepCosts(), slurm_call_s=5.0)),
        ("UndrainNode:vn1:1", replace(StepCosts(), undrain_s=5.0)),
    ],
)
def test_a_call_of_the_return_that_comes_late_undoes_no_eviction(late: str, slow: StepCosts) -> None:
    """It waits for a thread, behind memories on their way to disk, when the host is taken again."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, one_host(), MemoryJournal())
    low = sim.submit("htc", 200.0)
    run.until(lambda: running(run, low), 60)
    first = sim.submit("batch", 20.0)
    run.until(lambda: sim.job(first).state is JobState.COMPLETED, 60)
    run.until(lambda: run.world.running("WakeInstance:vn1:1"), 10)
    run.costs = slow
    run.until(lambda: run.world.running(late), 10)
    run.costs = StepCosts()
    second = sim.submit("batch", 60.0)
    run.until(lambda: running(run, second), 4)
    begun_s = sim.now_s
    run.until(lambda: sim.now_s > begun_s + 10.0, 20)
    assert run.world.managed["vn1"].phase is Phase.PARKED
    seen = sim.slurm.observe_nodes(["vn1"])
    assert seen.nodes["vn1"].drained
    assert seen.jobs[low].state is JobState.SUSPENDED
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_throttled_node_takes_no_jobs_whatever_came_late() -> None:
    """The drain of its first eviction is just being lifted when its host is wanted again."""
    sim = cluster(hosts=("bm1",))
    ladder = Ladder((RungRule(Rung.THROTTLE, within_s=30.0), RungRule(Rung.REQUEUE)))
    run = Rehearsal(sim, replace(one_host(), ladder=ladder), MemoryJournal())
    low = sim.submit("htc", 200.0)
    run.until(lambda: running(run, low), 60)
    first = sim.submit("batch", 20.0)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.THROTTLED, 30)
    run.costs = replace(StepCosts(), undrain_s=5.0)
    run.until(lambda: sim.job(first).state is JobState.COMPLETED, 60)
    run.until(lambda: run.world.running("UndrainNode:vn1:1"), 10)
    second = sim.submit("batch", 60.0)
    run.until(lambda: running(run, second), 4)
    begun_s = sim.now_s
    run.until(lambda: sim.now_s > begun_s + 10.0, 20)
    assert run.world.managed["vn1"].phase is Phase.THROTTLED
    assert sim.slurm.observe_nodes(["vn1"]).nodes["vn1"].drained
