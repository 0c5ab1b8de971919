"""A node is forgotten only when Slurm was told to delete it, or never had it."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.actions import DeleteNode
from backfill.core.model.lifecycle import Phase
from backfill.core.model.plan import ForgetNode
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import NOW_S, PARKED, POLICIES, calls, destroyed, world_of

LEAVING = replace(PARKED, phase=Phase.REMOVING, held=())
DELETE = "DeleteNode:vn1:1"


def gone() -> World:
    """Its instance is deleted, and the last reading of all nodes does not show it."""
    world = world_of(LEAVING, places={})
    destroyed(world)
    world.apply(ch.NodeGone("vn1", NOW_S + 61))
    return world


def asked(world: World) -> list[DeleteNode]:
    return [a for a in calls(plan(world, POLICIES)) if isinstance(a, DeleteNode)]


def forgotten(world: World) -> bool:
    return any(isinstance(a, ForgetNode) for a in plan(world, POLICIES).actions)


def ended(world: World, problem: str = "", key: str = DELETE) -> None:
    at_s = world.now_s
    world.apply(ch.OperationStarted(key, at_s, ""))
    world.apply(ch.OperationDone(key, at_s, problem))


def test_a_reading_that_lacks_it_is_not_believed() -> None:
    """One such reading may be odd: it is deleted all the same, and kept until that is done."""
    world = gone()
    assert [a.generation for a in asked(world)] == [1]
    assert not forgotten(world)
    ended(world)
    assert asked(world) == []
    assert forgotten(world)


def test_a_deletion_that_failed_is_none() -> None:
    """It is asked for again."""
    world = gone()
    ended(world, "slurmctld did not answer")
    world.apply(ch.Tick(NOW_S + 3600))
    for source in ("slurm", "bm1", "bm2"):
        world.apply(ch.SourceSeen(source, NOW_S + 3600))
    assert not world.deleted("vn1", 1)
    assert not forgotten(world)
    assert asked(world)


def test_the_deletion_of_an_earlier_life_does_not_count() -> None:
    """The name was used anew since."""
    world = gone()
    ended(world, key="DeleteNode:vn1:0")
    assert not world.deleted("vn1", 1)
    assert asked(world)


def test_what_is_forgotten_has_to_be_deleted_anew_the_next_time() -> None:
    """The note goes with the record."""
    world = gone()
    ended(world)
    assert world.deleted("vn1", 1)
    world.apply(ch.NodeForgotten("vn1", 1))
    assert not world.deleted("vn1", 1)


def test_a_node_that_slurm_never_showed_needs_no_deletion() -> None:
    """Its instance failed before it came to that."""
    world = world_of(LEAVING, places={})
    fresh = World()
    for change in (ch.Tick(world.now_s), ch.NodeManaged(LEAVING)):
        fresh.apply(change)
    destroyed(fresh)
    for host in world.hosts.values():
        fresh.apply(ch.HostSeen(host, world.now_s))
    for source in ("slurm", "bm1", "bm2"):
        fresh.apply(ch.SourceSeen(source, world.now_s))
    assert asked(fresh) == []
    assert forgotten(fresh)
