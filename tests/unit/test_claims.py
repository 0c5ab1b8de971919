"""A hook is answered when its hosts are proven free; a claim ends when its job is seen to have left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import AnswerClaim, EndClaim
from backfill.core.model.quantities import Resources
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import enact, plan
from backfill.core.world import World

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
    answer_within_s=5.0,
)


def claimed(job_id: str, *jobs: Job, reachable: bool = True) -> World:
    """A hook of `job_id` waits for bm1, where vn1 runs; Slurm, read since, shows these jobs."""
    world = World()
    host = Host("bm1", "bm1", Resources(2, 2000), reachable, "" if reachable else "no answer")
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.EVICTING, NOW_S, NOW_S)
    world.apply(ch.Tick(NOW_S))
    world.apply(ch.NodeManaged(node))
    world.apply(ch.HostSeen(host, NOW_S))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.MIXED, cpus=2), NOW_S))
    if reachable:
        tag = Tag("c", "vn1", 1)
        instance = Instance("vn1", "bm1", InstanceState.RUNNING, tag, Resources(1, 256))
        world.apply(ch.InstanceSeen(instance, NOW_S))
        world.apply(ch.SourceSeen("bm1", NOW_S))
    world.apply(ch.Claimed(job_id, ("bm1",), NOW_S, waiting=True))
    for job in jobs:
        world.apply(ch.JobSeen(job, NOW_S + 1))
    world.apply(ch.Tick(NOW_S + 1))
    world.apply(ch.SourceSeen("slurm", NOW_S + 1))
    return world


def answers(world: World) -> list[tuple[str, bool]]:
    """Which hooks are answered now, and whether the room is called free."""
    return [(a.job_id, a.ok) for a in plan(world, POLICIES).actions if isinstance(a, AnswerClaim)]


def ended(world: World) -> list[str]:
    """Which claims end now."""
    return [a.job_id for a in plan(world, POLICIES).actions if isinstance(a, EndClaim)]


@pytest.mark.parametrize(
    "job",
    [
        Job("7", 7, "batch", JobState.RUNNING, nodes=("bm1",)),
        Job("5_2", 7, "batch", JobState.RUNNING, nodes=("bm1",)),
        Job("6+1", 7, "batch", JobState.RUNNING, frozenset({"CONFIGURING"}), nodes=("bm1",)),
    ],
    ids=["plain", "array task", "component"],
)
def test_a_job_is_known_by_the_number_that_its_hook_has(job: Job) -> None:
    """As long as Slurm shows the job on the host, its hook waits for the instance to stop."""
    world = claimed("7", job)
    assert answers(world) == []
    assert not ended(world)


def test_a_reading_without_the_job_tells_its_hook_nothing() -> None:
    """Slurm shows somebody else there at most. One such reading may be odd, and the job go on."""
    world = claimed("7", Job("8", 8, "batch", JobState.RUNNING, nodes=("bm1",)))
    assert answers(world) == []
    assert not ended(world)
    world.apply(ch.ClaimAnswered("7", NOW_S + 1))  # the hook of a job that is gone goes, too
    assert ended(world) == ["7"]


def test_a_claim_stays_while_slurm_shows_neither_job_nor_node() -> None:
    """A reading that lacks both, though the node is there, says nothing of who has it."""
    world = claimed("7", Job("8", 8, "batch", JobState.RUNNING, nodes=("bm1",)))
    world.apply(ch.ClaimAnswered("7", NOW_S + 1))
    world.apply(ch.NodeGone("bm1", NOW_S + 1))
    world.apply(ch.JobGone("8", NOW_S + 1))
    assert not ended(world)


def test_a_host_never_seen_is_not_proven_free() -> None:
    """After a restart with the hypervisor down: our books say that an instance may run there."""
    world = claimed("7", Job("7", 7, "batch", JobState.RUNNING, nodes=("bm1",)), reachable=False)
    assert answers(world) == []
    world.apply(ch.Tick(NOW_S + 6))
    assert answers(world) == [("7", False)]


@pytest.mark.parametrize("seen", [None, Host("bm1", "bm1", Resources(0, 0), False, "no route")])
def test_a_host_that_was_never_read_is_not_proven_free(seen: Host | None) -> None:
    """Also where no record has anything there: the journal may be lost, and the host not answer."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    if seen is not None:
        world.apply(ch.HostSeen(seen, NOW_S))
        world.apply(ch.SourceFailed("bm1", NOW_S, seen.problem))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.ALLOCATED, cpus=2), NOW_S))
    world.apply(ch.Claimed("7", ("bm1",), NOW_S, waiting=True))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    assert answers(world) == []
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), NOW_S + 1))
    world.apply(ch.SourceSeen("bm1", NOW_S + 1))
    assert answers(world) == [("7", True)]


def wide(*nodes: str, read_s: float = NOW_S + 1) -> World:
    """Job 7 was given bm1 and bm2; Slurm shows it on these nodes now, and bm2 without it as free."""
    world, job = World(), Job("7", 7, "batch", JobState.RUNNING, nodes=("bm1", "bm2"), num_nodes=2)
    world.apply(ch.Tick(NOW_S))
    for host in ("bm1", "bm2"):
        world.apply(ch.HostSeen(Host(host, host, Resources(2, 2000)), NOW_S))
        world.apply(ch.NodeSeen(Node(host, NodeBase.ALLOCATED, cpus=2), NOW_S))
    world.apply(ch.JobSeen(job, NOW_S))
    world.apply(ch.Claimed("7", ("bm1", "bm2"), NOW_S, waiting=False))
    world.apply(ch.JobSeen(replace(job, nodes=nodes), NOW_S + 1))
    if "bm2" not in nodes:
        world.apply(ch.NodeSeen(Node("bm2", NodeBase.IDLE, cpus=2), NOW_S + 1))
    world.apply(ch.SourceSeen("slurm", read_s))
    return world


def test_a_host_leaves_the_claim_before_the_others() -> None:
    """A job that shrank, or still completes on one node: the other host is not taken any more."""
    world = wide("bm1")
    (step,) = enact(world, POLICIES).actions
    assert step == EndClaim("7", "the job has left bm2", ("bm2",))
    assert world.takers("bm2") == ()
    assert world.takers("bm1") == ("7",)
    world.apply(ch.JobGone("7", NOW_S + 2))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=2), NOW_S + 2))
    world.apply(ch.SourceSeen("slurm", NOW_S + 2))
    assert ended(world) == ["7"]


def test_no_host_leaves_the_claim_by_an_old_or_torn_reading() -> None:
    """One that began before the claim, or that shows the node as given away and nobody to whom."""
    assert not ended(wide("bm1", "bm2"))
    assert not ended(wide("bm1", read_s=NOW_S))
    world = wide("bm1")
    world.apply(ch.NodeSeen(Node("bm2", NodeBase.ALLOCATED, cpus=2), NOW_S + 1))
    assert not ended(world)
    world.apply(ch.NodeSeen(Node("bm2", NodeBase.IDLE, cpus=2), NOW_S + 2))
    assert ended(world) == ["7"]
