"""What others do in Slurm to our nodes and their jobs, or what Slurm forgets of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.lifecycle import HeldJob, Phase
from backfill.core.model.sentences import why
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, ready, running


def aside(jobs: int = 1) -> tuple[SimulatedWorld, Rehearsal, list[str], str]:
    """Low jobs stand still on the only host, each in an instance of its own, for a third."""
    sim = one_host(cpus=jobs)
    run = play(sim, replace(policies(), hosts=("bm1",)))
    lows = [sim.submit("htc", 300.0) for _ in range(jobs)]
    run.until(lambda: running(sim, *lows), 60)
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: len(phases(run, Phase.PARKED)) == jobs, 30)
    return sim, run, lows, high


@pytest.mark.parametrize("what", ["resume", "undrain", "both"])
def test_what_stands_aside_is_kept_so_in_slurm(what: str) -> None:
    """Resumed by others its time limit would run, and undrained it would be given new jobs."""
    sim, run, (low,), high = aside()
    if what != "resume":
        sim.slurm.undrain("vn1")
    if what != "undrain":
        sim.slurm.resume_job(low)
    run.run(10.0)
    other = sim.submit("htc", 30.0)
    run.run(10.0)
    seen = sim.slurm.observe_nodes(["vn1"])
    assert seen.nodes["vn1"].drained
    assert seen.jobs[low].state is JobState.SUSPENDED
    assert sim.job(other).state is JobState.PENDING
    run.until(lambda: ended(sim, high, low, other), 900)
    assert {sim.job(job).restarts for job in (low, high)} == {0}
    assert sim.audit() == []


def test_what_stands_aside_under_a_drain_of_others_stays_as_it_is() -> None:
    """Theirs is enough, and is not ours to change."""
    sim, run, (low,), high = aside()
    sim.admin_drain("vn1", "smells burnt")
    run.until(lambda: ended(sim, high, low), 900)
    assert sim.slurm.read_nodes(["vn1"])["vn1"].reason == "smells burnt"


def test_nodes_that_slurm_has_forgotten_go_a_few_at_a_time() -> None:
    """One reading that shows none of them never takes them all; made anew, they work again."""
    sim = cluster(cpus=6)
    limits = Limits(boots_at_once=12, removals_at_once=3)
    run = play(sim, policies(limits=limits, scale=Scale(idle_s=600)))
    jobs = [sim.submit("htc", 30.0) for _ in range(12)]
    run.until(lambda: ended(sim, *jobs) and ready(run) == 12, 300)
    for name in phases(run, Phase.READY):
        sim.slurm.delete_node(name)
    most, said = 0, set()
    while phases(run, Phase.READY):
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
        most = max(most, len(phases(run, Phase.REMOVING)))
        said |= {why(refusal) for refusal in run.cycle.last.refusals}
    assert most == 3
    assert any("limits.removals_at_once = 3" in reason for reason in said)
    again = [sim.submit("htc", 30.0) for _ in range(12)]
    run.until(lambda: ended(sim, *again), 900)
    assert sim.audit() == []


def test_jobs_that_slurm_has_forgotten_take_their_instances_a_few_at_a_time() -> None:
    """Stopped copies harm nobody, so there is time to see whether Slurm remembers them."""
    sim, run, lows, high = aside(jobs=4)
    run.cycle.policies = replace(run.policies, limits=Limits(destroys_per_min=1))
    for low in lows:
        sim.user_cancel(low)
    ends: list[float] = []
    while phases(run, Phase.PARKED):
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
        ends += [sim.now_s] * (4 - len(phases(run, Phase.PARKED)) - len(ends))
    assert len(ends) == 4
    assert all(after - before >= 60.0 for before, after in itertools.pairwise(ends))
    run.until(lambda: ended(sim, high), 200)
    assert sim.audit() == []


def test_a_copy_without_a_record_is_kept_where_its_job_was_never_requeued() -> None:
    """The journal is lost: it can only be of the job's one and only run."""
    sim, run, (low,), high = aside()
    run.kill()
    anew = Rehearsal(sim, run.policies, MemoryJournal())
    anew.until(lambda: bool(phases(anew, Phase.PARKED)), 60)
    assert anew.world.managed["vn1"].held == (HeldJob(low, 0),)
    anew.until(lambda: ended(sim, high, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_copy_of_which_nobody_knows_the_run_never_goes_on() -> None:
    """The journal is lost, and Slurm has started the job anew since, on that very node."""
    sim, run, (low,), high = aside()
    run.kill()
    sim.admin_drain("vn1", "")
    sim.slurm.set_address("vn1", "10.77.1.1")
    sim.requeue_behind(low, delay_s=0.0)
    anew = Rehearsal(sim, run.policies, MemoryJournal())
    anew.until(lambda: ended(sim, high, low), 900)
    assert sim.audit() == []


@pytest.mark.parametrize("cpus", [2, 1])
def test_a_node_that_is_down_serves_nobody_and_goes_when_it_is_empty(cpus: int) -> None:
    """Where there is room another one is made at once, else once it has gone; and why is said."""
    sim = one_host(cpus)
    run = play(sim, policies(hosts=("bm1",), scale=Scale(idle_s=60)))
    first = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, first), 60)
    sim.slurm.set_down("vn1", "admin: broken")
    second = sim.submit("htc", 10.0)
    run.run(2.0)
    assert "Slurm shows vn1 as DOWN" in " ".join(why(r) for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, second), 40 if cpus > 1 else 150)
    run.until(lambda: "vn1" not in run.world.managed or run.world.managed["vn1"].generation > 1, 120)
    assert sim.audit() == []


@pytest.mark.parametrize("waiting", [0, 3])
def test_an_idle_node_that_an_admin_has_drained_stays_until_he_lifts_it(waiting: int) -> None:
    """He wants to look at it; others are made for those who wait, and it is neither warm nor spare."""
    sim = cluster(cpus=4)
    run = play(sim, policies(scale=Scale(idle_s=60, warm=1)))
    first = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, first), 60)
    sim.admin_drain("vn1", "ticket 7: NFS hangs")
    others = [sim.submit("htc", 10.0) for _ in range(waiting)]
    run.until(lambda: ended(sim, *others), 120)
    run.run(600.0)
    assert run.world.managed["vn1"].generation == 1
    assert run.world.managed["vn1"].phase is Phase.READY
    said = " ".join(why(refusal) for refusal in run.cycle.last.refusals)
    assert "somebody else drained it: ticket 7: NFS hangs" in said
    assert len(phases(run, Phase.READY)) == 2  # and a warm one
    sim.admin_drain("vn1", "")
    run.until(lambda: len(phases(run, Phase.READY)) == 1, 200)
    assert sim.audit() == []


@pytest.mark.parametrize("said", ["Low RealMemory", "Kill task failed (JobId=7 StepId=batch)"])
def test_an_idle_node_that_slurm_itself_has_drained_is_replaced(said: str) -> None:
    """For a fault of its own; while it is there, it is neither warm nor of use to those who wait."""
    sim = cluster(cpus=4)
    run = play(sim, policies(scale=Scale(idle_s=60, warm=1)))
    first = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, first), 60)
    sim.admin_drain("vn1", said, by="root" if said.startswith("Kill") else "")
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 60)
    run.until(lambda: len(phases(run, Phase.READY)) == 1, 120)
    assert "vn1" not in phases(run, Phase.READY)
    assert sim.audit() == []
