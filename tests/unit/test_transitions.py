"""Each pair of the phase table has a situation that leads from the one to the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Fleet, FleetState, InstanceState, Rung
from backfill.core.model.lifecycle import (
    TRANSITIONS,
    InvalidTransitionError,
    ManagedNode,
    NodeProof,
    NodeStop,
    Phase,
    Retry,
    check_transition,
)
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import NOW_S, PARKED, POLICIES, destroyed, job, records, world_of

B, R, D, E, T, P, M, C, X, F, G = Phase  # in the order of the table; C: coming back, X: removed
RUNNING, PAUSED = InstanceState.RUNNING, InstanceState.PAUSED
LOW = job("7", JobState.RUNNING)
PROVEN = NodeProof(proven_s=NOW_S)
ALL = ("slurm", "bm1", "bm2")


def node(phase: Phase, **fields: object) -> ManagedNode:
    """A node of one CPU and job 7, in this phase for a minute."""
    given: dict[str, object] = {"phase": phase, "held": (), "proof": PROVEN, **fields}
    return replace(PARKED, **given)  # type: ignore[arg-type]


def ladder(*rungs: Rung) -> PolicySet:
    return replace(POLICIES, ladder=Ladder(tuple(RungRule(rung, 30.0, 300.0) for rung in rungs)))


def taken(world: World, host: str = "bm1") -> World:
    """Slurm gives the host to a job."""
    world.apply(ch.JobSeen(Job("9", 9, "batch", JobState.RUNNING, nodes=(host,)), world.now_s))
    return world


def gone(world: World) -> World:
    world.apply(ch.InstanceGone("bm1", "vn1", world.now_s))
    return world


def without_node(world: World) -> World:
    """Its instance was destroyed; Slurm was told to delete it, and shows it no more."""
    destroyed(world)
    key = "DeleteNode:vn1:1"
    world.apply(ch.OperationStarted(key, world.now_s, ""))
    world.apply(ch.OperationDone(key, world.now_s))
    world.apply(ch.NodeGone("vn1", world.now_s))
    return world


def undone(world: World) -> World:
    """The order that it was made for goes."""
    world.apply(ch.FleetSet(Fleet("f1", 1, FleetState.UNDOING, NOW_S, members=("vn1",))))
    return world


def idle(world: World) -> World:
    """Drained, and nobody is on it."""
    world.apply(ch.NodeSeen(Node("vn1", NodeBase.IDLE, frozenset({"DRAIN"}), "backfill: idle"), world.now_s))
    return world


def slow(world: World) -> World:
    """It goes on with next to no CPU."""
    seen = world.places_of("vn1")[0]
    world.apply(ch.InstanceSeen(replace(seen, throttled=True), world.now_s))
    return world


def at(*jobs: Job, **places: InstanceState) -> Callable[[ManagedNode], World]:
    return lambda made: world_of(made, *jobs, places=dict(places))


DRAINED = NodeStop(NOW_S - 1, drained_s=NOW_S)
AWAY = NodeStop(NOW_S, target="bm2")
# From, to: the node, the world around it, and the policies.
SITUATIONS: dict[tuple[Phase, Phase], tuple[ManagedNode, Callable[[ManagedNode], World], PolicySet]] = {
    (B, E): (node(B), lambda n: taken(at(bm1=RUNNING)(n)), POLICIES),
    (R, E): (node(R), lambda n: taken(at(LOW, bm1=RUNNING)(n)), POLICIES),
    (R, X): (node(R), lambda n: gone(at(bm1=RUNNING)(n)), POLICIES),
    (D, R): (node(D, stop=DRAINED), at(LOW, bm1=RUNNING), POLICIES),
    (D, E): (node(D, stop=DRAINED), lambda n: taken(at(LOW, bm1=RUNNING)(n)), POLICIES),
    (D, X): (node(D, stop=DRAINED), lambda n: idle(at(bm1=RUNNING)(n)), POLICIES),
    (E, M): (
        node(E, stop=NodeStop(NOW_S + 59)),
        lambda n: taken(at(LOW, bm1=RUNNING)(n)),
        ladder(Rung.MIGRATE, Rung.PAUSE),
    ),
    (E, C): (node(E, stop=NodeStop(NOW_S + 59)), at(LOW, bm1=RUNNING), POLICIES),
    (E, P): (
        node(E, stop=DRAINED, held=PARKED.held),
        lambda n: taken(at(job("7"), job("8"), bm1=PAUSED)(n)),
        POLICIES,
    ),
    (T, E): (node(T, stop=NodeStop(NOW_S - 999)), lambda n: taken(at(LOW, bm1=RUNNING)(n)), POLICIES),
    (T, C): (
        node(T, stop=NodeStop(NOW_S)),
        lambda n: slow(at(LOW, bm1=RUNNING)(n)),
        ladder(Rung.THROTTLE, Rung.PAUSE),
    ),
    (T, X): (node(T, stop=NodeStop(NOW_S)), lambda n: gone(at(bm1=RUNNING)(n)), POLICIES),
    (P, C): (node(P, held=PARKED.held), at(job("7"), job("8"), bm1=PAUSED), POLICIES),
    (P, M): (
        node(P, held=PARKED.held, stop=NodeStop(NOW_S)),
        lambda n: taken(at(job("7"), job("8"), bm1=PAUSED)(n)),
        ladder(Rung.PAUSE, Rung.MIGRATE),
    ),
    (P, X): (node(P, held=PARKED.held), at(job("7", JobState.COMPLETED), bm1=PAUSED), POLICIES),
    (M, P): (
        node(M, held=PARKED.held, stop=AWAY),
        lambda n: taken(taken(at(job("7"), job("8"), bm2=PAUSED)(n)), "bm2"),
        POLICIES,
    ),
    (M, C): (node(M, held=PARKED.held, stop=AWAY), at(job("7"), job("8"), bm2=PAUSED), POLICIES),
    (M, E): (node(M, stop=NodeStop(NOW_S)), at(LOW, bm1=RUNNING), POLICIES),
    (C, E): (node(C, held=PARKED.held), lambda n: taken(at(job("7"), job("8"), bm1=PAUSED)(n)), POLICIES),
    (C, P): (node(C, held=PARKED.held, since_s=NOW_S - 9999), at(job("7"), bm1=PAUSED), POLICIES),
    (C, X): (node(C, held=PARKED.held), at(job("7", JobState.PENDING, 1), bm1=PAUSED), POLICIES),
    (X, F): (node(X, fail=True), lambda n: without_node(at()(n)), POLICIES),
    (X, G): (node(X, fail=True, retry=Retry(failures=999)), lambda n: without_node(at()(n)), POLICIES),
    (G, F): (node(G, fleet="f1"), lambda n: undone(without_node(at()(n))), POLICIES),
    (X, E): (node(X, unconfirmed="Slurm shows job 7 on it"), at(LOW, bm1=RUNNING), POLICIES),
}
# These take more than a world that stands still, and are what most tests of whole days are about.
EVERYWHERE = {(B, R), (B, X), (R, D), (E, T), (E, X), (C, R), (F, B), (G, B)}


def test_the_table_is_what_is_shown_here() -> None:
    """Whoever adds a pair adds its situation."""
    assert SITUATIONS.keys() | EVERYWHERE == {(a, b) for a, after in TRANSITIONS.items() for b in after}
    assert not SITUATIONS.keys() & EVERYWHERE


@pytest.mark.parametrize(("before", "after"), SITUATIONS, ids=str)
def test_it_goes_from_the_one_to_the_other(before: Phase, after: Phase) -> None:
    """As soon as it has been read often enough."""
    made, around, policies = SITUATIONS[before, after]
    world = around(made)
    for _ in range(160):
        phases = [record.phase for record in records(plan(world, policies))]
        if phases and phases[0] is not before:
            assert phases[0] is after
            return
        for record in records(plan(world, policies))[:1]:
            world.apply(ch.NodeManaged(record))
        world.apply(ch.Tick(world.now_s + 4.0))
        for source in ALL:
            world.apply(ch.SourceSeen(source, world.now_s))
    raise AssertionError(f"it stayed {world.managed['vn1']}")


@pytest.mark.parametrize("before", list(Phase))
def test_no_other_pair_is_possible(before: Phase) -> None:
    """A step that wants one is a programmer's error, and is told with what it knows."""
    for after in Phase:
        if after is before or after in TRANSITIONS[before]:
            check_transition(node(before), after)
            continue
        with pytest.raises(InvalidTransitionError, match=rf"from {before} to {after}"):
            check_transition(node(before), after)
