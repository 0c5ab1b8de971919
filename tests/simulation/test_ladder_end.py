"""The last rungs of a ladder: a move that has to wait for its time, and an end that nobody asks for."""

from __future__ import annotations

from backfill.core.model.changes import HoldSet
from backfill.core.model.cluster import JobState
from backfill.core.model.lifecycle import Phase, Rung
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import line
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

PAUSE = RungRule(Rung.PAUSE, within_s=1.0, for_s=20.0)
REQUEUE = RungRule(Rung.REQUEUE)


def aside(
    *rungs: RungRule, move_after_s: float = 2.0, for_s: float = 600.0
) -> tuple[SimulatedWorld, Rehearsal, str, str]:
    """A job stands still, as its host has another for so long, while the second host is empty."""
    sim = cluster()
    rules = policies(ladder=Ladder(rungs), comeback=Comeback(move_after_s=move_after_s))
    run = play(sim, rules)
    low = sim.submit("htc", 600.0)
    run.until(lambda: running(sim, low), 60)
    run.run(10.0)
    (node,) = run.world.managed.values()
    sim.submit("batch", for_s, required_nodes=(node.host,))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 60)
    return sim, run, low, node.host


def told(run: Rehearsal) -> list[str]:
    return [str(record.body.get("reason")) for record in run.journal.read() if record.kind == "phase"]


def test_a_rung_that_moves_waits_until_it_may_move() -> None:
    """Nothing is given to the queue while there is room elsewhere."""
    move = RungRule(Rung.MIGRATE, within_s=60.0)
    sim, run, low, _ = aside(PAUSE, move, REQUEUE, move_after_s=60.0)
    run.run(40.0)
    found = [line(refusal) for refusal in run.cycle.last.refusals if refusal.wanted is Goal.MOVE]
    assert found == ["vn1: move refused: it moves once it has stood still for 60 s (`comeback.move_after_s`)"]
    run.until(lambda: ended(sim, low), 800)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_it_waits_for_no_longer_than_the_rung_allows() -> None:
    """And says what kept it from moving."""
    move = RungRule(Rung.MIGRATE, within_s=10.0)
    sim, run, low, _ = aside(PAUSE, move, REQUEUE, move_after_s=300.0)
    run.until(lambda: sim.job(low).restarts == 1, 60)
    assert [why for why in told(run) if "next rung: requeue" in why] == [
        "it moves once it has stood still for 300 s (`comeback.move_after_s`); next rung: requeue"
    ]
    assert sim.audit() == []


def test_for_a_host_that_is_only_shut_the_ladder_does_not_end_and_says_so() -> None:
    """Nobody wants it: the work stays intact until somebody does, or opens the host."""
    sim, run, low, host = aside(PAUSE, REQUEUE, for_s=15.0)
    sim.admin_drain(host, "bad DIMM")
    run.run(2000.0)
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    (found,) = [line(refusal) for refusal in run.cycle.last.refusals if refusal.wanted is Goal.REQUEUE]
    assert found.startswith(f"vn1: requeue refused: the end of the ladder is reached; Slurm shows {host} as ")
    assert found.endswith(f", and nobody has {host}: open it, or give it up with `backfill evict {host}`")
    run.cycle.take([HoldSet(host, run.now_s, True, "bad DIMM")])
    run.until(lambda: sim.job(low).restarts == 1, 60)
    assert sim.audit() == []
