"""The last rungs of a ladder: a move that has to wait for its time, and an end that nobody asks for."""

from __future__ import annotations

from backfill.core.model.changes import HoldSet
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
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


LONG = RungRule(Rung.PAUSE, within_s=1.0, for_s=600.0)
MOVE = RungRule(Rung.MIGRATE)


def unended(run: Rehearsal) -> list[str]:
    """Why the ladder does not end, as an admin reads it."""
    return [line(refusal) for refusal in run.cycle.last.refusals if refusal.wanted is Goal.REQUEUE]


def test_for_a_host_that_stays_drained_the_ladder_ends_and_says_when() -> None:
    """Only when the drain has lasted for as long as the work may wait: a short one loses nothing."""
    sim, run, low, host = aside(LONG, REQUEUE, for_s=500.0)
    run.until(lambda: sim.now_s % 1.0 == 0.0, 2)
    sim.at(sim.now_s + 480.0, lambda: sim.admin_drain(host, "bad DIMM"))
    run.run(1000.0)  # its own time was over at 600 s
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    (found,) = unended(run)
    assert found.startswith(f"vn1: requeue refused: the end of the ladder is reached; Slurm shows {host} as ")
    assert found.endswith(
        f"(bad DIMM), and nobody has {host}: open it, or give it up with `backfill evict {host}`; "
        "once it has been drained for 600 s, the ladder ends by itself"
    )
    run.until(lambda: sim.job(low).restarts == 1, 300)
    assert sim.now_s > 1000.0
    run.until(lambda: ended(sim, low), 900)
    assert sim.audit() == []


def test_a_drain_that_is_lifted_in_time_brings_the_work_back() -> None:
    """Also where the time of its ladder is over by then."""
    sim, run, low, host = aside(LONG, REQUEUE, for_s=500.0)
    sim.at(sim.now_s + 480.0, lambda: sim.admin_drain(host, "a new fan"))
    sim.at(sim.now_s + 1000.0, lambda: sim.admin_drain(host, ""))
    run.until(lambda: ended(sim, low), 2000)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_while_every_host_is_drained_the_work_is_kept() -> None:
    """A maintenance of the whole site: what starts over gains nothing, and what is kept goes on later."""
    sim, run, low, host = aside(PAUSE, REQUEUE, for_s=15.0)
    for name in sim.hosts:
        sim.admin_drain(name, "new firmware")
    run.run(5000.0)
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    (found,) = unended(run)
    assert found.endswith(f"nobody has {host}: open it, or give it up with `backfill evict {host}`")
    for name in sim.hosts:
        sim.admin_drain(name, "")
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_for_a_host_that_is_down_the_ladder_does_not_end_and_says_so() -> None:
    """It may come back by itself: the work stays intact until it does, or somebody gives it up."""
    sim, run, low, host = aside(PAUSE, REQUEUE, for_s=15.0)
    sim.admin_drain(host, "bad DIMM")
    run.until(lambda: ended(sim, "2"), 30)
    sim.slurm.set_down(host, "Not responding")
    sim.admin_drain(host, "")
    run.run(5000.0)
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    (found,) = unended(run)
    assert f"the end of the ladder is reached; Slurm shows {host} as DOWN" in found
    assert found.endswith(f"nobody has {host}: open it, or give it up with `backfill evict {host}`")
    run.cycle.take([HoldSet(host, run.now_s, True, "bad DIMM")])
    run.until(lambda: sim.job(low).restarts == 1, 60)
    assert sim.audit() == []


def test_work_whose_host_is_drained_goes_on_elsewhere_where_its_ladder_moves() -> None:
    """With all that it has computed, and without waiting for the ladder's end."""
    sim, run, low, host = aside(LONG, MOVE, REQUEUE, for_s=15.0, move_after_s=60.0)
    sim.admin_drain(host, "bad DIMM")
    run.until(lambda: phases(run, Phase.READY) == {"vn1"}, 120)
    assert run.world.managed["vn1"].host != host
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_what_is_slowed_down_gets_its_cpus_back_on_a_host_that_is_drained() -> None:
    """Nobody has the host: to be slow there for as long as it is drained would help nobody."""
    sim, run, low, host = slowed()
    sim.admin_drain(host, "bad DIMM")
    run.until(lambda: phases(run, Phase.READY) == {"vn1"}, 120)
    assert sim.hosts[host].instances["vn1"].state is InstanceState.RUNNING
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def slowed() -> tuple[SimulatedWorld, Rehearsal, str, str]:
    """The host of a job's instance has another job for a while, and the instance goes on slowly."""
    sim = cluster()
    run = play(sim, policies(ladder=Ladder((RungRule(Rung.THROTTLE, within_s=1.0), REQUEUE))))
    low = sim.submit("htc", 600.0)
    run.until(lambda: running(sim, low), 60)
    run.run(10.0)
    (node,) = run.world.managed.values()
    sim.submit("batch", 15.0, required_nodes=(node.host,))
    run.until(lambda: phases(run, Phase.THROTTLED) == {"vn1"}, 60)
    return sim, run, low, node.host
