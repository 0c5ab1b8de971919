"""A daemon that begins anew renews no pilot's patience: it is the same stop, whatever became of it since."""

from __future__ import annotations

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import JobPatience, Phase
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.workloads import Workload, Workloads
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, phases, play, policies, running

PAUSE, MIGRATE = RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.MIGRATE)


def pilot_on(*rungs: RungRule, hosts: tuple[str, ...] = ("bm1",)) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A pilot that can stand still for 100 s, at work."""
    sim = cluster(cpus=1)
    pilots = Workloads((Workload("pilot", stand_still_s=100.0, ladder=rungs),))
    run = play(sim, policies(hosts=hosts, workloads=pilots, comeback=Comeback(within_s=5.0)))
    low = sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, low), 30)
    run.run(3.0)
    return sim, run, low


def take(sim: SimulatedWorld, run: Rehearsal, for_s: float) -> None:
    """Its host is given to somebody of whom nobody knows how long he stays."""
    host = run.world.managed["vn1"].host
    sim.submit("batch", for_s, time_limit_s=None, required_nodes=(host,))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 20)


def patience(run: Rehearsal) -> JobPatience | None:
    (held,) = run.world.managed["vn1"].held
    return held.patience


def begin_anew(run: Rehearsal) -> None:
    """The daemon is restarted; its pilot can stand still for no longer than before."""
    before = patience(run)
    assert run.world.nodes["vn1"].reason != f"backfill: {run.world.managed['vn1'].reason}"
    run.kill()
    run.run(2.0)
    run.start()
    run.run(5.0)
    assert patience(run) == before


def ends_at(sim: SimulatedWorld, run: Rehearsal, low: str, stopped_s: float) -> None:
    run.until(lambda: sim.job(low).state is JobState.PENDING, 200)
    assert 90.0 < run.now_s - stopped_s < 112.0
    assert sim.audit() == []


def test_after_a_move_that_failed() -> None:
    """Also by a second one: what the first notes is no other stop either."""
    sim, run, low = pilot_on(PAUSE, MIGRATE, hosts=("bm1", "bm2"))
    sim.faults.fail("migrate", UnreachableError("vn1", "no answer"), times=-1)
    take(sim, run, 400.0)
    stopped_s = run.now_s
    run.run(15.0)
    for _ in range(2):
        run.run(20.0)
        begin_anew(run)
    ends_at(sim, run, low, stopped_s)


def test_after_a_return_that_was_put_off() -> None:
    """The drain still tells of the first stop; its host is wanted again."""
    sim, run, low = pilot_on(PAUSE)
    fault = sim.faults.fail("thaw", UnreachableError("vn1", "no answer"), times=-1)
    take(sim, run, 10.0)
    stopped_s = run.now_s
    run.until(lambda: "failed" in run.world.managed["vn1"].reason, 60)
    run.run(3.0)
    sim.submit("batch", 400.0, time_limit_s=None, required_nodes=("bm1",))
    run.run(10.0)
    fault.end()
    begin_anew(run)
    ends_at(sim, run, low, stopped_s)
