"""Whatever the books have on hosts that nobody has read, a plan comes out, and leaves those alone."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import HeldJob, ManagedNode, NodeProof, NodeStop, Phase
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.quantities import Resources
from backfill.core.policies.demand import Demand
from backfill.core.policies.saving import Saving
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.simulation.policy_cluster import policies

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0
HOSTS = ("bm1", "bm2", "bm3")  # the policy file names the first two
STATES = (InstanceState.RUNNING, InstanceState.PAUSED, InstanceState.SUSPENDED)
Kept = tuple[
    Phase, str, bool, InstanceState
]  # a node's phase, its host, whether a job is on it, and how it is

kept = st.tuples(
    st.sampled_from(sorted(Phase)), st.sampled_from(HOSTS), st.booleans(), st.sampled_from(STATES)
)
rules = st.builds(
    lambda extent, automatic: policies(
        victims=Victims(extent=extent), saving=Saving(automatic=automatic), demand=Demand(max_nodes=8)
    ),
    st.sampled_from(Extent),
    st.booleans(),
)


def known(nodes: list[Kept], together: bool) -> World:
    """A world as after a start: the books, what Slurm shows of them, and no host. `together`: one job."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    busy = tuple(f"vn{i}" for i, (*_, works, _) in enumerate(nodes, 1) if works)
    for i, (phase, host, works, _) in enumerate(nodes, 1):
        name, at_s = f"vn{i}", NOW_S - DAY_S
        still = phase in (Phase.PARKED, Phase.MOVING, Phase.RETURNING)
        job = ("1" if together else str(i)) if works else ""
        node = ManagedNode(
            name,
            f"10.77.1.{i}/16",
            host,
            1,
            phase,
            at_s,
            at_s,
            held=(HeldJob(job, 0),) if still and job else (),
            stop=NodeStop(at_s, kind=Rung.PAUSE, target="bm2" if phase is Phase.MOVING else None),
            proof=NodeProof(at_s),
            idle_since_s=None if works else at_s,
        )
        world.apply(ch.NodeManaged(node))
        drained = frozenset({"DRAIN"}) if still else frozenset[str]()
        base = NodeBase.ALLOCATED if works else NodeBase.IDLE
        world.apply(ch.NodeSeen(Node(name, base, drained, "backfill: x", cpus=1, slurmd_start_s=at_s), NOW_S))
        if job:
            state = JobState.SUSPENDED if still else JobState.RUNNING
            there = busy if together else (name,)
            found = Job(job, int(job), "htc", state, nodes=there, num_nodes=len(there), start_s=at_s)
            world.apply(ch.JobSeen(found, NOW_S))
    for host in HOSTS:
        world.apply(ch.NodeSeen(Node(host, NodeBase.IDLE, cpus=4), NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    return world


def read(world: World, host: str, nodes: list[Kept]) -> None:
    """Show the host, and on it what the books have there."""
    world.apply(ch.HostSeen(Host(host, host, Resources(4, 4096), keeps=True), NOW_S))
    for i, (_, where, _, state) in enumerate(nodes, 1):
        if where == host:
            seen = Instance(f"vn{i}", host, state, Tag("sim", f"vn{i}", 1), Resources(1, 256))
            world.apply(ch.InstanceSeen(seen, NOW_S))
    world.apply(ch.SourceSeen(host, NOW_S))


def decide(world: World, given: PolicySet, unread: set[str]) -> None:
    found = plan(world, given)
    assert set(found.actions) == set(plan(world, given, from_scratch=True).actions)
    for action in found.actions:
        assert getattr(action, "host", None) not in unread
        assert not (isinstance(action, AnswerClaim) and action.ok and unread)


@settings(max_examples=150, deadline=None)
@given(
    nodes=st.lists(kept, max_size=6),
    order=st.permutations(HOSTS),
    given_=rules,
    claimed=st.booleans(),
    together=st.booleans(),
)
@example(  # one stands still and another is idle on a host that is slower than Slurm
    nodes=[
        (Phase.PARKED, "bm1", True, InstanceState.PAUSED),
        (Phase.READY, "bm1", False, InstanceState.RUNNING),
    ],
    order=["bm2", "bm1", "bm3"],
    given_=policies(),
    claimed=False,
    together=False,
)
@example(  # a checkpoint is due of a job of which one host was not read
    nodes=[
        (Phase.READY, "bm1", True, InstanceState.RUNNING),
        (Phase.READY, "bm2", True, InstanceState.RUNNING),
    ],
    order=["bm1", "bm2", "bm3"],
    given_=policies(saving=Saving(automatic=True), demand=Demand(max_nodes=2)),
    claimed=False,
    together=True,
)
@example(  # a hook asks for a host that was not read
    nodes=[(Phase.READY, "bm1", True, InstanceState.RUNNING)],
    order=["bm2", "bm1", "bm3"],
    given_=policies(victims=Victims(extent=Extent.NEEDED)),
    claimed=True,
    together=False,
)
def test_hosts_are_read_one_after_the_other(
    nodes: list[Kept], order: list[str], given_: PolicySet, claimed: bool, together: bool
) -> None:
    """After each of them a plan comes out, as from scratch, without a call to a host that was not read."""
    world = known(nodes, together)
    if claimed:
        world.apply(ch.Claimed("99", HOSTS, NOW_S, waiting=True))
    unread = set(HOSTS)
    decide(world, given_, unread)
    for host in order:
        read(world, host, nodes)
        unread.discard(host)
        decide(world, given_, unread)
        decide(world, replace(given_, hosts=("bm1", "bm2")), unread)
