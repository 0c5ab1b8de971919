"""What is planned right after a start, when hosts were read before Slurm has said a word."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import PauseInstance
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import HeldJob, ManagedNode, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.records import encode, remembered
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
)


def restarted(phase: Phase, state: InstanceState | None) -> World:
    """A world with what the journal remembers and one host's picture, a minute after the start."""
    world = World()
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, phase, NOW_S, NOW_S, held=(HeldJob("7", 0),))
    world.apply(ch.NodeManaged(node))
    world.apply(ch.Tick(NOW_S + 60))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), NOW_S + 60))
    if state is not None:
        tag = Tag("c", "vn1", 1)
        instance = Instance("vn1", "bm1", state, tag, Resources(1, 256))
        world.apply(ch.InstanceSeen(instance, NOW_S + 60))
    world.apply(ch.SourceSeen("bm1", NOW_S + 60))
    return world


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        (Phase.BOOTING, InstanceState.RUNNING),
        (Phase.READY, InstanceState.RUNNING),
        (Phase.DRAINING, InstanceState.RUNNING),
        (Phase.EVICTING, InstanceState.PAUSED),
        (Phase.PARKED, InstanceState.PAUSED),
        (Phase.PARKED, InstanceState.SUSPENDED),
        (Phase.RETURNING, InstanceState.PAUSED),
        (Phase.REMOVING, None),
    ],
)
def test_nothing_is_concluded_from_a_slurm_not_read_yet(phase: Phase, state: InstanceState | None) -> None:
    """A node or job that Slurm has not shown yet is not gone: nothing is done or written down."""
    assert plan(restarted(phase, state), POLICIES).actions == ()


def test_an_eviction_that_was_begun_is_finished() -> None:
    """Nobody is known to want the host, because nobody was asked yet: the pause still happens."""
    (step,) = plan(restarted(Phase.EVICTING, InstanceState.RUNNING), POLICIES).actions
    assert isinstance(step, PauseInstance)


def test_unknown_instances_wait_for_slurm() -> None:
    """An instance without a record is judged only after Slurm was read."""
    world = restarted(Phase.READY, InstanceState.RUNNING)
    world.apply(ch.NodeForgotten("vn1"))
    world.apply(ch.Tick(NOW_S + 600))
    assert plan(world, POLICIES).actions == ()


def test_a_hook_is_served_even_then() -> None:
    """A host that is claimed is given back although Slurm was not read: a pause harms nobody."""
    world = restarted(Phase.READY, InstanceState.RUNNING)
    world.apply(ch.Claimed("9", ("bm1",), NOW_S + 60, waiting=True))
    first, *others = plan(world, POLICIES).actions
    assert isinstance(first, SetNode)
    assert first.node.phase is Phase.EVICTING
    assert [type(a) for a in others] == [PauseInstance]


def test_a_generation_is_never_used_twice() -> None:
    """A node that is over leaves its generation behind, also for a daemon that starts over."""
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 4, Phase.REMOVING, NOW_S, NOW_S)
    told = [ch.NodeManaged(node), ch.NodeForgotten("vn1", 4)]
    world = World()
    for change in remembered(map(encode, told)):
        world.apply(change)
    assert world.managed == {}
    assert world.generations == {"vn1": 4}
