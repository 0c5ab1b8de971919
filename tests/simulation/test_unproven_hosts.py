"""A host that has not proven itself gets no instances; those that it has lose nothing."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import line
from backfill.core.policies.ladder import Ladder, RungRule
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

WRONG = "its clock is 7.0 s ahead of the daemon's"


def test_nothing_is_made_there_and_the_sentence_is_told() -> None:
    """No host is good: the job waits, and an admin reads why. Then one is."""
    sim = cluster()
    for host in sim.hosts:
        sim.spoil_host(host, WRONG)
    run = play(sim, policies())
    low = sim.submit("htc", 30.0)
    run.run(120.0)
    assert not run.world.managed
    told = [r for r in run.cycle.last.refusals if WRONG in line(r)]
    assert told
    assert "has not proven itself" in line(told[0])
    sim.spoil_host("bm1", "")
    run.until(lambda: running(sim, low), 60)
    assert {m.host for m in run.world.managed.values()} == {"bm1"}
    run.until(lambda: ended(sim, low), 600)
    assert sim.audit() == []


def test_others_are_used_instead() -> None:
    """One of two is good."""
    sim = cluster()
    sim.spoil_host("bm1", WRONG)
    run = play(sim, policies())
    low = sim.submit("htc", 30.0)
    run.until(lambda: running(sim, low), 60)
    assert {m.host for m in run.world.managed.values()} == {"bm2"}


def test_what_is_there_goes_on_and_comes_back() -> None:
    """It fails while an instance is at work there, and stays so: eviction and return are as ever."""
    sim = cluster()
    run = play(sim, replace(policies(ladder=Ladder((RungRule(Rung.PAUSE, within_s=30.0),)))))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    (node,) = run.world.managed.values()
    for host in sim.hosts:
        sim.spoil_host(host, WRONG)
    high = sim.submit("batch", 60.0, required_nodes=(node.host,))
    run.until(lambda: phases(run, Phase.PARKED) == {node.name}, 30)
    run.until(lambda: ended(sim, high, low), 1500)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_nothing_moves_there() -> None:
    """Its own host is wanted for an hour, and the other has room, but has not proven itself."""
    sim = cluster()
    ladder = Ladder((RungRule(Rung.MIGRATE, 30.0), RungRule(Rung.PAUSE, 30.0)))
    run = play(sim, policies(ladder=ladder))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    (node,) = run.world.managed.values()
    (other,) = set(sim.hosts) - {node.host}
    sim.spoil_host(other, WRONG)
    run.run(5.0)
    high = sim.submit("batch", 600.0, required_nodes=(node.host,))
    run.until(lambda: phases(run, Phase.PARKED) == {node.name}, 60)
    run.run(60.0)
    assert {m.host for m in run.world.managed.values()} == {node.host}
    refused = [r for r in run.cycle.last.refusals if r.code in (Code.NO_HOST, Code.HOST_UNPROVEN)]
    assert any(WRONG in line(r) for r in refused)
    sim.spoil_host(other, "")
    run.until(lambda: running(sim, low), 60)
    assert {m.host for m in run.world.managed.values()} == {other}
    run.until(lambda: ended(sim, high, low), 1500)
    assert sim.audit() == []
