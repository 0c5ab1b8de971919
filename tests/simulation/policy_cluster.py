"""A small cluster whose policy a test chooses, and what the tests ask of it."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal

TWELVE = Template(
    names=tuple(f"vn{i}" for i in range(1, 13)),
    addresses=tuple(f"10.77.1.{i}/16" for i in range(1, 13)),
    flavour=Flavour(cpus=1, memory_mb=256),
)
STAY = Ladder((RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.REQUEUE)))


def policies(**rules: object) -> PolicySet:
    given = PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=TWELVE,
        hosts=("bm1", "bm2"),
        ladder=STAY,
        scale=Scale(idle_s=30),
        limits=Limits(boots_at_once=12, removals_at_once=12),
    )
    return replace(given, **rules)  # type: ignore[arg-type]


def cluster(cpus: int = 4, start_s: float = 1_700_000_000.0) -> SimulatedWorld:
    sim = SimulatedWorld(start_s=start_s)
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    for host in ("bm1", "bm2"):
        sim.add_host(host, cpus=cpus, features=("metal",))
    return sim


def play(sim: SimulatedWorld, rules: PolicySet) -> Rehearsal:
    return Rehearsal(sim, rules, MemoryJournal())


def phases(run: Rehearsal, phase: Phase) -> set[str]:
    return {m.name for m in run.world.managed.values() if m.phase is phase}


def ready(run: Rehearsal) -> int:
    return len(phases(run, Phase.READY))


def running(sim: SimulatedWorld, *jobs: str) -> bool:
    seen = [sim.job(j) for j in jobs]
    return all(j.state is JobState.RUNNING and "CONFIGURING" not in j.flags for j in seen)


def ended(sim: SimulatedWorld, *jobs: str) -> bool:
    return all(sim.job(j).state is JobState.COMPLETED for j in jobs)


def one_host(cpus: int = 4, manners: Manners | None = None) -> SimulatedWorld:
    sim = SimulatedWorld(manners=manners)
    sim.checks.shared = True
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    sim.add_host("bm1", cpus=cpus, features=("metal",))
    return sim


def taken_once(run: Rehearsal, sim: SimulatedWorld) -> str:
    """A job runs on an instance and its host is taken for 30 s. Returns the low job's id."""
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    host = next(iter(run.world.managed.values())).host
    high = sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: ended(sim, high), 60)
    return low
