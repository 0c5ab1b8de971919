"""A host that is off for good: people say so, and what was on it starts over elsewhere."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running


def said_off(run: Rehearsal, host: str) -> None:
    """The order of `backfill evict HOST --off`."""
    run.cycle.take([ch.HoldSet(host, run.sim.now_s, on=True, reason="burnt", off=True)])
    run.cycle.decide()


def dark(run: Rehearsal, job: str) -> str:
    """The job's host loses its power and is seen to be silent; its name."""
    (name,) = run.sim.job(job).nodes
    host = run.world.managed[name].host
    run.sim.kill_host(host)
    run.until(lambda: not run.world.hosts[host].reachable, 30)
    return host


def test_its_nodes_go_and_their_jobs_start_anew_elsewhere() -> None:
    """Before that nothing is done; afterwards the name is free, and the host stays closed."""
    sim = cluster()
    run = play(sim, policies())
    job = sim.submit("htc", 60.0)
    run.until(lambda: running(sim, job), 60)
    host = dark(run, job)
    run.run(20.0)
    assert run.world.managed["vn1"].phase is Phase.READY
    said_off(run, host)
    run.until(lambda: sim.job(job).restarts == 1, 60)
    run.until(lambda: ended(sim, job), 300)
    assert all(m.host != host for m in run.world.managed.values())
    assert sim.audit() == []


def test_a_removal_that_waits_for_the_host_goes_on_also_after_a_restart() -> None:
    """The daemon that was told has died; the next one knows it from the journal."""
    sim = cluster()
    run = play(sim, policies())
    job = sim.submit("htc", 600.0)
    run.until(lambda: running(sim, job), 60)
    (name,) = sim.job(job).nodes
    dark(run, job)
    sim.slurm.set_down(name, "a person did this")
    sim.slurm.delete_node(name)
    run.until(lambda: run.world.managed[name].phase is Phase.REMOVING, 600)
    run.run(60.0)
    assert run.world.managed[name].phase is Phase.REMOVING
    said_off(run, run.world.managed[name].host)
    run.kill()
    run.start()
    run.until(lambda: name not in run.world.managed or run.world.managed[name].generation > 1, 600)


def test_a_host_that_comes_back_all_the_same_keeps_no_copy() -> None:
    """What it still carries is stale: it is removed before anything goes on there."""
    sim = cluster()
    run = play(sim, policies())
    job = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, job), 60)
    (name,) = sim.job(job).nodes
    host = run.world.managed[name].host
    sim.cut_host(host)
    run.until(lambda: not run.world.hosts[host].reachable, 30)
    sim.user_cancel(job)
    said_off(run, host)
    run.until(lambda: name not in run.world.managed, 300)
    sim.join_host(host)
    run.until(lambda: name not in sim.hosts[host].instances, 60)


MOVES = RungRule(Rung.MIGRATE, within_s=60.0)
ASIDE = RungRule(Rung.PAUSE, within_s=1.0, for_s=400.0)


@pytest.mark.parametrize("ladder", [Ladder((ASIDE, MOVES, RungRule(Rung.REQUEUE))), Ladder((MOVES, ASIDE))])
def test_a_move_from_a_host_that_burns_meanwhile_awaits_word_of_it(ladder: Ladder) -> None:
    """Whether the copy is still there nobody can see; that is said until people say that it is off."""
    sim = cluster(1)
    run = play(sim, policies(ladder=ladder, comeback=Comeback(move_after_s=10.0)))
    job = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, job), 60)
    run.run(10.0)
    host = run.world.managed["vn1"].host
    sim.submit("batch", 5000.0, required_nodes=(host,))
    run.until(lambda: bool(phases(run, Phase.MOVING)), 60)
    run.run(0.5)
    sim.kill_host(host)
    run.run(60.0)
    assert phases(run, Phase.MOVING) == {"vn1"}
    (refused,) = (r for r in run.cycle.last.refusals if (r.subject, r.wanted) == ("vn1", Goal.MOVE_TO))
    assert refused.code is Code.MAY_BE_THERE
    said_off(run, host)
    run.until(lambda: sim.job(job).restarts == 1, 60)
    run.until(lambda: ended(sim, job), 400)
    assert sim.audit() == []


def test_an_instance_in_the_making_goes_with_its_host() -> None:
    """The call that was to create it failed and may have acted; off for good, the host has none of it."""
    sim = cluster(1)
    run = play(sim, policies())
    job = sim.submit("htc", 100.0)
    run.until(lambda: bool(phases(run, Phase.BOOTING)), 10)
    host = run.world.managed["vn1"].host
    sim.kill_host(host)
    run.run(30.0)
    assert "vn1" in run.world.doubts
    said_off(run, host)
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 300)
    assert run.world.doubts == {}
    assert phases(run, Phase.REMOVING) == set()


def test_removals_that_wait_for_a_dead_host_are_in_nobodys_way_elsewhere() -> None:
    """As many as may go at once wait there: those that idle on the other host go all the same."""
    sim = cluster()
    limits = Limits(boots_at_once=12, removals_at_once=2)
    run = play(sim, policies(limits=limits, scale=Scale(idle_s=30, boot_within_s=60)))
    jobs = [sim.submit("htc", 60.0) for _ in range(8)]
    run.until(lambda: len(phases(run, Phase.BOOTING)) == 8, 10)
    sim.kill_host("bm2")
    run.until(lambda: len(phases(run, Phase.REMOVING)) == 4, 200)
    for job in jobs:
        sim.user_cancel(job)
    run.until(lambda: all(m.host == "bm2" for m in run.world.managed.values()), 200)
    assert len(phases(run, Phase.REMOVING)) == 4
    assert sim.audit() == []
