"""Instances of which the journal knows nothing are taken over as they are."""

from __future__ import annotations

from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.slurm.model import SimReservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, ready, running


def stopped(*rungs: RungRule) -> tuple[SimulatedWorld, Rehearsal, str, str]:
    """A job stands still for another, and the daemon has died and lost its journal."""
    sim = one_host(cpus=1)
    run = play(sim, policies(ladder=Ladder(rungs), hosts=("bm1",)))
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    high = sim.submit("batch", 120.0, required_nodes=("bm1",))
    run.until(lambda: len(phases(run, Phase.PARKED)) == 1, 60)
    run.kill()
    run.journal = MemoryJournal()
    return sim, run, low, high


def test_a_lost_journal_does_not_end_the_time_on_a_rung() -> None:
    """Whoever is taken over standing still has just begun to: he is not given to the queue."""
    sim, run, low, high = stopped(RungRule(Rung.SUSPEND, within_s=60.0, for_s=300.0), RungRule(Rung.REQUEUE))
    run.start()
    run.until(lambda: ended(sim, high), 200)
    run.until(lambda: ended(sim, low), 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_one_that_stands_still_outlasts_readings_that_lack_its_job() -> None:
    """Its host is in maintenance, and slurmctld tells of no job at first.

    Its node is hidden, as only for a job.
    """
    sim, run, low, high = stopped(RungRule(Rung.SUSPEND, within_s=60.0, for_s=600.0))
    sim.slurm.reserve(["bm1"], SimReservation(sim.now_s, sim.now_s + 30.0))
    order = sim.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
    run.start()
    run.run(5.0)
    order.end()
    run.until(lambda: ended(sim, high, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_who_is_taken_over_was_not_made_now() -> None:
    """After the loss of the journal a limit of new instances holds for new instances."""
    sim = cluster()
    rules = policies(limits=Limits(boots_at_once=12, removals_at_once=12, creates_per_hour=4))
    run = play(sim, rules)
    lows = [sim.submit("htc", 90_000.0) for _ in range(4)]
    run.until(lambda: running(sim, *lows), 60)
    run.kill()
    run.journal = MemoryJournal()
    run.start()
    run.until(lambda: ready(run) == 4, 60)
    assert run.world.created_lately(3600.0) == 0
    late = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, late), 120)
