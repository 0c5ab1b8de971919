"""Idle instances that go: whatever the reason, all of them count for the same limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.policies.budgets import Budget, Budgets, Of
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World

NOW_S = 1_000_000.0
NAMES = tuple(f"vn{number}" for number in range(1, 10))
ADDRESSES = tuple(f"10.77.1.{number}/16" for number in range(1, 10))
FLAVOUR = Flavour(cpus=1, memory_mb=256)
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(NAMES, ADDRESSES, FLAVOUR),
    hosts=("bm1",),
)
FALLEN, FORGOTTEN, IDLE = NAMES[:3], NAMES[3:6], NAMES[6:]


def look_of(name: str) -> Node:
    base = NodeBase.DOWN if name in FALLEN else NodeBase.IDLE
    flags = frozenset({"DYNAMIC_NORM", *(("RESERVED",) if name in FORGOTTEN else ())})
    return Node(name, base, flags=flags, cpus=1, memory_mb=FLAVOUR.node_memory_mb, slurmd_start_s=1.0)


def all_idle(names: tuple[str, ...] = NAMES) -> World:
    """All have been idle for long: three Slurm shows as DOWN, three it keeps for jobs long forgotten."""
    world = World()
    for at_s in (NOW_S - 500, NOW_S):
        world.apply(ch.Tick(at_s))
        world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(20, 20_000)), at_s))
        world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=20), at_s))
        for name in names:
            instance = Instance(name, "bm1", InstanceState.RUNNING, Tag("c", name, 1), Resources(1, 256))
            world.apply(ch.InstanceSeen(instance, at_s))
            world.apply(ch.NodeSeen(look_of(name), at_s))
        world.apply(ch.SourceSeen("bm1", at_s))
        world.apply(ch.SourceSeen("slurm", at_s))
    for number, name in enumerate(names):
        node = ManagedNode(name, ADDRESSES[number], "bm1", 1, Phase.READY, NOW_S - 500, NOW_S - 900)
        proof, idle_s = NodeProof(NOW_S - 500), NOW_S - 400 - number * (name in IDLE)
        known = replace(node, proof=proof, idle_since_s=idle_s, found=name in FORGOTTEN)
        world.apply(ch.NodeManaged(known))
    return world


def going(world: World, policies: PolicySet) -> set[str]:
    found = plan(world, policies).actions
    return {a.node.name for a in found if isinstance(a, SetNode) and a.node.phase is Phase.DRAINING}


def test_they_go_for_three_reasons() -> None:
    assert going(all_idle(), POLICIES) >= {FALLEN[0], FORGOTTEN[0], IDLE[-1]}


@pytest.mark.parametrize(
    "rules",
    [
        {"limits": Limits(removals_at_once=2)},
        {"scale": Scale(shrink_per_min=2)},
        {"budgets": Budgets((Budget("2", Of.DISRUPTIONS),))},
    ],
)
def test_no_limit_is_passed_by_several_reasons(rules: dict[str, object]) -> None:
    """As by one."""
    assert len(going(all_idle(), replace(POLICIES, **rules))) == 2  # type: ignore[arg-type]


def test_what_has_fallen_is_no_part_of_what_is_kept_warm() -> None:
    """Two that are well were wanted, and two are there: only those that are DOWN go."""
    world = all_idle((*FALLEN, *IDLE[:2]))
    assert going(world, replace(POLICIES, scale=Scale(warm=2))) == set(FALLEN)
