"""A fleet of a hundred on one host, as in the paper: each of them once, all of them or none."""

from __future__ import annotations

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Flavour, FleetState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.core.policies.cloning import Choice, Cloning
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Spread
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.fleet_order import fleet_order, leaving
from backfill.sim.scenarios.rehearsal import Rehearsal

_MANY = 100
_RULES = PolicySet(
    cluster="sim",
    priorities=Priorities(low=("htc",)),
    instances=Template(
        names=tuple(f"vn{i}" for i in range(1, _MANY + 1)),
        addresses=tuple(f"10.77.1.{i}/16" for i in range(1, _MANY + 1)),
        flavour=Flavour(cpus=1, memory_mb=128),
    ),
    hosts=("bm1",),
    scale=Scale(idle_s=20, boot_within_s=60, retry_after_s=5, give_up_after=3),
    cloning=Cloning(method=Choice.LINKED, at_once_per_host=8),
    placement=Spread(cpu_overcommit=50.0),
    limits=Limits(
        max_instances=_MANY,
        max_per_host=_MANY,
        boots_at_once=8,
        creates_per_hour=1000,
        removals_at_once=_MANY,
    ),
)


def site() -> tuple[SimulatedWorld, Rehearsal]:
    """One host of two CPUs and 16 GB, whose CPUs are promised fifty times."""
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.checks.overcommit = 50.0
    sim.add_host("bm1", cpus=2, memory_mb=16 << 10, node=False)
    run = Rehearsal(sim, _RULES, MemoryJournal())
    run.run(5.0)
    return sim, run


def order(run: Rehearsal) -> str:
    fleet = fleet_order(run.world, _RULES, {"n": _MANY})
    run.cycle.take([ch.FleetSet(fleet)])
    return fleet.id


def test_all_hundred_take_jobs_and_none_is_made_twice() -> None:
    """Each with a name, an address and a disk of its own; a few at a time, one that fails again."""
    sim, run = site()
    sim.faults.never_boots("vn7", 1)
    identity = order(run)
    run.until(lambda: run.world.fleets[identity].state is FleetState.READY, 2000)
    there = sim.hosts["bm1"].instances
    assert len(there) == _MANY
    assert len({node.address for node in run.world.managed.values()}) == _MANY
    made = [decode(r.body).spec for r in run.journal.read() if r.body.get("t") == "CreateInstance"]
    assert {(spec.name, spec.tag.generation) for spec in made} >= {(f"vn{i}", 1) for i in range(1, _MANY + 1)}
    assert len({(spec.name, spec.tag.generation) for spec in made}) == _MANY + 1
    run.cycle.take([ch.FleetSet(leaving(run.world, identity))])
    run.until(lambda: not run.world.fleets and not there, 600)
    assert sim.audit() == []


def test_one_that_never_comes_leaves_none_of_the_hundred() -> None:
    """The order says which it was."""
    sim, run = site()
    sim.faults.never_boots("vn99", -1)
    identity = order(run)
    run.until(lambda: run.world.fleets[identity].state is FleetState.FAILED, 4000)
    assert "vn99 failed 3 times" in run.world.fleets[identity].reason
    assert not sim.hosts["bm1"].instances
    assert [(node.name, node.phase) for node in run.world.managed.values()] == [("vn99", Phase.FAILED)]
    assert sim.audit() == []
