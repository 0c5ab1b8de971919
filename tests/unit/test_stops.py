"""Instances that stand still, as a plan sees them: what is kept and what is destroyed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import (
    DeleteInstance,
    DriverAction,
    MigrateInstance,
    RequeueJob,
    ThawInstance,
)
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import Cause, HeldJob, ManagedNode, NodeStop, Phase
from backfill.core.model.operations import Operation, OperationDone
from backfill.core.model.plan import AnswerClaim, Plan, SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.room import room
from backfill.core.world import World

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=2, memory_mb=256)),
    hosts=("bm1", "bm2"),
)
PARKED = ManagedNode(
    "vn1", "10.77.1.1/16", "bm1", 1, Phase.PARKED, NOW_S, NOW_S, held=(HeldJob("7", 0), HeldJob("8", 0))
)


def job(job_id: str, state: JobState = JobState.SUSPENDED, restarts: int = 0) -> Job:
    nodes = () if state is JobState.PENDING else ("vn1",)
    return Job(job_id, int(job_id), "htc", state, nodes=nodes, restarts=restarts)


def world_of(
    node: ManagedNode,
    *jobs: Job,
    hosts: tuple[str, ...] = ("bm1", "bm2"),
    places: dict[str, InstanceState] | None = None,
    generation: int = 1,
) -> World:
    """A world in which all was read a minute after the node's record was made."""
    at_s = NOW_S + 60
    world = World()
    world.apply(ch.Tick(at_s))
    world.apply(ch.NodeManaged(node))
    for host in hosts:
        world.apply(ch.HostSeen(Host(host, host, Resources(4, 4000)), at_s))
        world.apply(ch.NodeSeen(Node(host, NodeBase.IDLE, cpus=4), at_s))
    flags = frozenset({"DRAIN", "DYNAMIC_NORM"})
    world.apply(ch.NodeSeen(Node("vn1", NodeBase.MIXED, flags, "backfill: a test", cpus=2), at_s))
    for one in jobs:
        world.apply(ch.JobSeen(one, at_s))
    for host, state in (places if places is not None else {"bm1": InstanceState.PAUSED}).items():
        instance = Instance("vn1", host, state, Tag("c", "vn1", generation), Resources(2, 256))
        world.apply(ch.InstanceSeen(instance, at_s))
    for source in ("slurm", *hosts):
        world.apply(ch.SourceSeen(source, at_s))
    return world


def records(found: Plan) -> list[ManagedNode]:
    return [a.node for a in found.actions if isinstance(a, SetNode)]


def step(world: World, at_s: float, *sources: str) -> ManagedNode:
    """The record after a plan at `at_s`, when these sources were read and showed the same."""
    world.apply(ch.Tick(at_s))
    for source in sources:
        world.apply(ch.SourceSeen(source, at_s))
    for record in records(plan(world, POLICIES)):
        world.apply(ch.NodeManaged(record))
    return world.managed["vn1"]


def convinced(world: World, *sources: str) -> ManagedNode:
    """The record when the same has been read again and again for long enough."""
    for _ in range(5):
        step(world, world.now_s + 4.0, *sources)
    return world.managed["vn1"]


def calls(found: Plan) -> list[DriverAction]:
    return [a for a in found.actions if isinstance(a, DriverAction)]


def test_what_was_held_stays_noted_until_it_goes_on() -> None:
    """Slurm does not show one of two jobs: it may have ended, or be back in the queue."""
    world = world_of(PARKED, job("7"), job("8"))
    world.apply(ch.JobGone("7", NOW_S + 61))
    (record,) = records(plan(world, POLICIES))
    assert record.phase is Phase.RETURNING
    assert record.held == PARKED.held
    world.apply(ch.NodeManaged(record))
    (thaw,) = [a for a in calls(plan(world, POLICIES)) if isinstance(a, ThawInstance)]
    assert thaw.held == PARKED.held


def destroyed(world: World) -> None:
    """A call of ours has destroyed the instance."""
    key = "DeleteInstance:vn1:1"
    world.apply(ch.OperationStarted(key, world.now_s, ""))
    world.apply(ch.OperationDone(key, world.now_s))


def test_readings_that_lack_an_instance_do_not_free_its_room() -> None:
    """However many: its hypervisor is asked for it alone, and what is still there is destroyed."""
    world = world_of(replace(PARKED, phase=Phase.REMOVING, held=()), places={})
    for at_s in (61, 71, 81):
        world.apply(ch.Tick(NOW_S + at_s))
        for source in ("slurm", "bm1", "bm2"):
            world.apply(ch.SourceSeen(source, NOW_S + at_s))
        (delete,) = calls(plan(world, POLICIES))
        assert isinstance(delete, DeleteInstance)
        assert (delete.host, delete.cause) == ("bm1", None)
        assert room(world, "bm1", POLICIES) == Resources(2, 3744)
    destroyed(world)
    assert not [a for a in calls(plan(world, POLICIES)) if isinstance(a, DeleteInstance)]
    assert room(world, "bm1", POLICIES) == Resources(4, 4000)


@pytest.mark.parametrize("phase", [Phase.PARKED, Phase.RETURNING])
def test_a_guest_that_somebody_started_anew_is_removed_and_its_jobs_start_anew(phase: Phase) -> None:
    """Nothing of them is in it, although Slurm still holds them there."""
    world = world_of(replace(PARKED, phase=phase), job("7"), job("8"))
    running = Instance(
        "vn1", "bm1", InstanceState.RUNNING, Tag("c", "vn1", 1), Resources(2, 256), restarted=True
    )
    world.apply(ch.InstanceSeen(running, NOW_S + 61))
    assert step(world, NOW_S + 62, "bm1", "slurm").phase is phase
    record = convinced(world, "bm1", "slurm")
    assert record.phase is Phase.REMOVING
    assert "restarted its guest" in record.reason
    (delete,) = calls(plan(world, POLICIES))
    assert isinstance(delete, DeleteInstance)
    assert delete.cause is Cause.REBOOTED
    assert {held.id for held in delete.held} == {"7", "8"}
    gone_s = world.now_s + 1.0
    world.apply(ch.InstanceGone("bm1", "vn1", gone_s))
    destroyed(world)
    world.apply(ch.SourceSeen("bm1", gone_s))
    asked = [a for a in calls(plan(world, POLICIES)) if isinstance(a, RequeueJob)]
    assert {a.job_id for a in asked} == {"7", "8"}


def test_a_stale_copy_is_destroyed_also_when_its_host_is_wanted_again() -> None:
    """It was on its way back when another job came, and its own were requeued."""
    returning = replace(PARKED, phase=Phase.RETURNING)
    world = world_of(returning, job("7", JobState.PENDING, 1), job("8", JobState.PENDING, 1))
    world.apply(ch.Claimed("9", ("bm1",), NOW_S + 60, waiting=False))
    (record,) = records(plan(world, POLICIES))
    assert record.phase is Phase.EVICTING
    world.apply(ch.NodeManaged(record))
    assert step(world, NOW_S + 62, "slurm", "bm1").phase is Phase.EVICTING
    record = convinced(world, "slurm", "bm1")
    assert record.phase is Phase.REMOVING
    assert "Slurm has requeued job 7" in record.reason


@pytest.mark.parametrize(
    ("old", "why_stale"),
    [
        ((job("7", JobState.PENDING, 1), job("8", JobState.PENDING, 1)), "Slurm has requeued job 7"),
        ((job("7", JobState.COMPLETED), job("8", JobState.COMPLETED)), "its jobs have ended"),
    ],
    ids=["requeued", "ended"],
)
def test_a_copy_that_is_over_is_kept_for_a_run_that_came_to_its_node_since(
    old: tuple[Job, ...], why_stale: str
) -> None:
    """Somebody lifted the drain: what runs there now is not destroyed with what stood still."""
    world = world_of(PARKED, *old, job("9", JobState.RUNNING))
    assert convinced(world, "slurm", "bm1").phase is Phase.PARKED
    found = plan(world, POLICIES)
    assert calls(found) == []
    (refused,) = [r for r in found.refusals if r.key == ("vn1", Goal.REMOVAL, "")]
    assert refused.code is Code.MAY_HAVE_JOBS
    assert why_stale in why(refused)
    world.apply(ch.JobSeen(job("9", JobState.COMPLETED), world.now_s))
    record = convinced(world, "slurm", "bm1")
    assert record.phase is Phase.REMOVING
    assert why_stale in record.reason


def test_no_work_is_lost_at_the_end_of_the_ladder_for_a_hook_alone() -> None:
    """Slurm has not been read since it asked: what stands still stays so until Slurm shows the job."""
    ladder = Ladder((RungRule(Rung.PAUSE, for_s=10.0), RungRule(Rung.REQUEUE)))
    rules = replace(POLICIES, hosts=("bm1",), ladder=ladder)
    world = world_of(PARKED, job("7"), job("8"), hosts=rules.hosts)
    world.apply(ch.Claimed("9", ("bm1",), world.now_s, waiting=True))

    def planned() -> Plan:
        found = plan(world, rules)
        for record in records(found):
            world.apply(ch.NodeManaged(record))
        world.apply(ch.Tick(world.now_s + 1.0))
        world.apply(ch.SourceSeen("bm1", world.now_s))
        return found

    for found in (planned(), planned(), planned()):
        assert calls(found) == []
        (refused,) = [r for r in found.refusals if r.key == ("vn1", Goal.REQUEUE, "")]
        assert refused.code is Code.HOST_CLAIMED
    world.apply(ch.JobSeen(Job("9", 9, "batch", JobState.RUNNING, nodes=("bm1",)), world.now_s))
    world.apply(ch.SourceSeen("slurm", world.now_s))
    asked = [a for a in (*calls(planned()), *calls(planned())) if isinstance(a, RequeueJob)]
    assert {a.job_id for a in asked} == {"7", "8"}


def test_a_node_whose_host_left_the_policy_file_is_left_alone_and_named() -> None:
    """Nobody can look there: its job stays as it is, and the refusal says what to do."""
    world = world_of(replace(PARKED, host="bm3"), job("7"), job("8"), places={})
    found = plan(world, POLICIES)
    assert found.actions == ()
    (refusal,) = [r for r in found.refusals if r.subject == "vn1"]
    assert "no longer names its host bm3" in why(refusal)


def test_a_move_is_judged_only_when_both_hosts_were_read() -> None:
    """A daemon that starts in the middle of one: the instance may be at either end."""
    moving = replace(PARKED, phase=Phase.MOVING, stop=NodeStop(NOW_S, target="bm2"))
    world = world_of(moving, job("7"), job("8"), hosts=("bm1",), places={})
    found = plan(world, POLICIES)
    assert found.actions == ()
    assert [r for r in found.refusals if r.subject == "vn1"] == []
    world.apply(ch.HostSeen(Host("bm2", "bm2", Resources(4, 4000)), NOW_S + 61))
    assert [type(a) for a in calls(plan(world, POLICIES))] == [MigrateInstance]


def test_room_is_not_free_while_an_instance_arrives_by_a_call_that_nobody_remembers() -> None:
    """The daemon died during a move: the hypervisors go on with it, and the guest runs on there."""
    moving = replace(PARKED, phase=Phase.MOVING, stop=NodeStop(NOW_S, target="bm2"), held=())
    places = {"bm1": InstanceState.RUNNING, "bm2": InstanceState.MIGRATING}
    world = world_of(moving, job("7", JobState.RUNNING), places=places)
    world.apply(ch.Claimed("9", ("bm2",), NOW_S + 60, waiting=True))
    assert [a for a in plan(world, POLICIES).actions if isinstance(a, AnswerClaim)] == []
    world.apply(ch.InstanceGone("bm2", "vn1", NOW_S + 61))
    (answer,) = [a for a in plan(world, POLICIES).actions if isinstance(a, AnswerClaim)]
    assert answer.ok


def test_the_room_of_a_throttled_instance_is_free_once_it_is_gone_and_not_before() -> None:
    """A call to remove it asks Slurm first, and may spare it: then it works at full speed again."""
    going = replace(PARKED, phase=Phase.REMOVING, held=())
    world = world_of(going, places={"bm1": InstanceState.RUNNING})
    instance = replace(world.instances["bm1", "vn1"], throttled=True)
    world.apply(ch.InstanceSeen(instance, NOW_S + 61))
    assert instance.in_use == Resources(0, 256)
    assert room(world, "bm1", POLICIES) == Resources(2, 3744)
    world.apply(ch.InstanceGone("bm1", "vn1", NOW_S + 62))
    assert room(world, "bm1", POLICIES) == Resources(2, 3744)
    destroyed(world)
    assert room(world, "bm1", POLICIES) == Resources(4, 4000)


@pytest.mark.parametrize(
    ("said", "since_s", "ours"),
    [
        ("", NOW_S + 60, True),
        (" [1 holds 7:0*]", NOW_S + 60, False),
        (" [2 holds 7:0*]", NOW_S + 60, True),
        ("", NOW_S + 61, False),
    ],
    ids=["drained before", "whose drain names others", "of an earlier instance", "drained since"],
)
def test_who_suspended_a_job_on_a_node_that_was_drained_before_slurm_was_read(
    said: str, since_s: float, ours: bool
) -> None:
    """An old journal knows of no stop; the host is taken again, and its instance stopped, while blind."""
    stop = NodeStop(since_s, drained_s=since_s)
    world = world_of(replace(PARKED, phase=Phase.EVICTING, stop=stop, held=()), job("7"))
    seen = replace(world.nodes["vn1"], reason=f"backfill: a test{said}")
    world.apply(ch.NodeSeen(seen, NOW_S + 62))
    world.apply(ch.NodesRead(("vn1",), NOW_S + 62))
    world.apply(ch.JobSeen(Job("9", 9, "batch", JobState.RUNNING, nodes=("bm1",)), NOW_S + 62))
    parked = step(world, NOW_S + 62)
    assert parked.held == (HeldJob("7", 0, ours=ours),)


def test_a_node_that_no_host_takes_tells_why_of_each() -> None:
    """Of three hosts each has a reason of its own, and none is lost: one refusal names them all."""
    ladder = Ladder((RungRule(Rung.PAUSE, for_s=None), RungRule(Rung.MIGRATE)))
    wide = replace(POLICIES, hosts=("bm1", "bm2", "bm3", "bm4"), ladder=ladder)
    world = world_of(PARKED, job("7"), job("8"), hosts=wide.hosts)
    for number, host in ((9, "bm1"), (10, "bm2")):
        high = Job(str(number), number, "batch", JobState.RUNNING, nodes=(host,))
        world.apply(ch.JobSeen(high, NOW_S + 60))
    world.apply(ch.HoldSet("bm3", NOW_S + 60, True, "a new fan"))
    world.apply(ch.NodeSeen(Node("bm4", NodeBase.DOWN, cpus=4), NOW_S + 60))
    world.apply(ch.Tick(NOW_S + 3600))
    for source in ("slurm", *wide.hosts):
        world.apply(ch.SourceSeen(source, NOW_S + 3600))
    (refused,) = [r for r in plan(world, wide).refusals if r.key == ("vn1", Goal.MOVE, "")]
    assert refused.code is Code.NO_HOST
    assert why(refused) == (
        "bm2 was given to job 10; bm3 was closed by hand: a new fan; Slurm shows bm4 as DOWN"
    )


@pytest.mark.parametrize(
    ("began_s", "between", "left"),
    [
        (63.0, (), ("7",)),
        (61.9, (), ("7", "8")),  # Slurm's whole second may be of before the stop
        (0.0, (), ("7", "8")),
        (63.0, (InstanceState.RUNNING, InstanceState.PAUSED), ("7", "8")),
        (63.0, (InstanceState.SUSPENDED,), ("7",)),
    ],
    ids=["later", "perhaps before", "before", "it ran in between", "also on disk"],
)
def test_only_of_what_began_before_the_stop_there_is_a_copy(
    began_s: float, between: tuple[InstanceState, ...], left: tuple[str, ...]
) -> None:
    """Slurm gave the job to a node whose instance stood still already, and began it anew."""
    world = world_of(PARKED, job("7"))
    for number, state in enumerate(between, 61):
        instance = Instance("vn1", "bm1", state, Tag("c", "vn1", 1), Resources(2, 256))
        world.apply(ch.InstanceSeen(instance, NOW_S + number))
        world.apply(ch.Tick(NOW_S + number + 1.0))
    begun = replace(job("8"), start_s=NOW_S + began_s)
    world.apply(ch.JobSeen(begun, NOW_S + 70))
    world.apply(ch.JobSeen(job("8", JobState.PENDING, restarts=1), NOW_S + 80))
    assert tuple(held.id for held in world.managed["vn1"].held) == left
    assert world.fleet.holders("8") == frozenset({"vn1"} if "8" in left else ())


def test_another_instance_of_the_name_has_not_stood_still_for_as_long() -> None:
    """The one before was replaced between two readings."""
    world = world_of(PARKED)
    assert world.fleet.still_since_s("bm1", "vn1") == NOW_S + 60
    instance = Instance("vn1", "bm1", InstanceState.PAUSED, Tag("c", "vn1", 2), Resources(2, 256))
    world.apply(ch.InstanceSeen(instance, NOW_S + 90))
    assert world.fleet.still_since_s("bm1", "vn1") == NOW_S + 90
    world.apply(ch.InstanceGone("bm1", "vn1", NOW_S + 91))
    assert world.fleet.still_since_s("bm1", "vn1") is None


def test_a_stop_that_fails_is_tried_again_while_its_host_is_wanted() -> None:
    """Each second for a while, as a hook waits for seconds only; then ever more seldom, as other calls."""
    waits: dict[str, list[float]] = {}
    for key in ("PauseInstance:vn1:1", "ThrottleInstance:vn1:1:2", "DrainNode:vn1:1"):
        operation, found = Operation(key, "bm1", running=True, since_s=NOW_S), []
        for _ in range(22):
            operation = operation.failed(OperationDone(key, NOW_S, "no answer"))
            found.append(operation.not_before_s - NOW_S)
        waits[key.partition(":")[0]] = found
    stop = [0.25, 0.5, *[1.0] * 11, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]
    assert waits["PauseInstance"] == waits["ThrottleInstance"] == stop
    assert waits["DrainNode"][:10] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
