"""What is planned about instances that no record explains, where more than one host shows the same."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.sentences import why
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.simulation.policy_cluster import policies

NOW_S = 1_700_000_000.0
RUNNING, PAUSED = InstanceState.RUNNING, InstanceState.PAUSED


def place(host: str, state: InstanceState, generation: int = 1) -> Instance:
    return Instance("vn1", host, state, Tag("sim", "vn1", generation), Resources(1, 256))


def world(*places: Instance, record: ManagedNode | None = None) -> World:
    """Two hosts and what they have shown of vn1 for long enough, which Slurm knows."""
    made = World()
    made.apply(ch.Tick(NOW_S))
    if record is not None:
        made.apply(ch.NodeManaged(record))
    for host in ("bm1", "bm2"):
        made.apply(ch.HostSeen(Host(host, host, Resources(4, 4096)), NOW_S))
        made.apply(ch.NodeSeen(Node(host, NodeBase.IDLE, cpus=4), NOW_S))
    made.apply(ch.NodeSeen(Node("vn1", NodeBase.IDLE, cpus=1, slurmd_start_s=NOW_S), NOW_S))
    for one in places:
        made.apply(ch.InstanceSeen(one, NOW_S))
    read(made, NOW_S)
    read(made, NOW_S + 15.0)
    return made


def read(made: World, at_s: float) -> None:
    made.apply(ch.Tick(at_s))
    for source in ("slurm", "bm1", "bm2"):
        made.apply(ch.SourceSeen(source, at_s))


def taken_over(made: World) -> set[tuple[str, int]]:
    """The hosts and generations of the records that are written for it."""
    steps = plan(made, policies()).actions
    assert set(steps) == set(plan(made, policies(), from_scratch=True).actions)
    return {(step.node.host, step.node.generation) for step in steps if isinstance(step, SetNode)}


@pytest.mark.parametrize("states", [(PAUSED, RUNNING), (PAUSED, PAUSED), (RUNNING, RUNNING)])
@pytest.mark.parametrize("behind", [False, True])
def test_of_two_copies_none_is_taken_over(states: tuple[InstanceState, InstanceState], behind: bool) -> None:
    """Without a journal, or with an old one; once a single host shows it, that one is taken over."""
    old = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.FAILED, NOW_S, NOW_S)
    generation = 2 if behind else 1
    places = [place(host, state, generation) for host, state in zip(("bm1", "bm2"), states, strict=True)]
    made = world(*places, record=old if behind else None)
    assert taken_over(made) == set()
    said = [why(refusal) for refusal in plan(made, policies()).refusals if refusal.subject == "vn1"]
    assert said == ["bm1, bm2 show it, and nobody knows which is right: remove it by hand from all but one"]
    made.apply(ch.InstanceGone("bm1", "vn1", NOW_S + 16.0))
    read(made, NOW_S + 16.0)
    assert taken_over(made) == {("bm2", generation)}


def test_beside_an_older_copy_the_latest_is_taken_over() -> None:
    """The older one is none of it, wherever it is."""
    for older, later in (("bm1", "bm2"), ("bm2", "bm1")):
        assert taken_over(world(place(older, RUNNING, 1), place(later, RUNNING, 2))) == {(later, 2)}
