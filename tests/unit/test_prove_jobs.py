"""After a return the guest is looked into until its jobs are known to go on."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.actions import DriverAction, KickJob, ProbeJobs, ResumeJob
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import JobCheck, ManagedNode, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World

BACK_S = 1_000_000.0  # when it was back at work; its job was suspended two seconds before
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
)


def back_at_work(state: JobState = JobState.RUNNING) -> World:
    """A node at work again, with the job that was suspended there."""
    world = World()
    check = JobCheck(BACK_S - 2)
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.READY, BACK_S, BACK_S, check=check)
    instance = Instance("vn1", "bm1", InstanceState.RUNNING, Tag("c", "vn1", 1), Resources(1, 256))
    job = Job("7", 7, "htc", state, nodes=("vn1",))
    world.apply(ch.NodeManaged(node))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), BACK_S))
    world.apply(ch.InstanceSeen(instance, BACK_S))
    seen = Node("vn1", NodeBase.ALLOCATED, address="10.77.1.1", cpus=1, memory_mb=208)
    world.apply(ch.NodeSeen(seen, BACK_S))
    world.apply(ch.JobSeen(job, BACK_S))
    return world


def wanted(world: World, after_s: float) -> list[type]:
    """Which actions are wanted so long after the return; records of ours are taken at once."""
    world.apply(ch.Tick(BACK_S + after_s))
    world.apply(ch.SourceSeen("slurm", BACK_S + after_s))
    world.apply(ch.SourceSeen("bm1", BACK_S + after_s))
    actions = plan(world, POLICIES).actions
    for action in actions:
        if isinstance(action, SetNode):
            world.apply(ch.NodeManaged(action.node))
    return [type(a) for a in actions if isinstance(a, DriverAction)]


def probe(world: World, after_s: float, *, stuck: bool) -> None:
    """A look into the guest came back."""
    world.apply(ch.Probed("vn1", 1, BACK_S + after_s, stuck))


def test_jobs_are_looked_at_until_no_late_signal_can_come() -> None:
    """Every half second at first, and no more when the time for late signals is over."""
    world = back_at_work()
    assert wanted(world, 0.1) == []
    assert wanted(world, 0.6) == [ProbeJobs]
    probe(world, 0.7, stuck=False)
    assert wanted(world, 1.0) == []
    assert wanted(world, 1.3) == [ProbeJobs]
    probe(world, 23.5, stuck=False)
    assert wanted(world, 23.6) == []
    assert wanted(world, 30.0) == []


def test_the_last_look_comes_after_the_last_late_signal() -> None:
    """Looks are seconds apart by then: a job that was stopped between them stood still for ever."""
    world = back_at_work()
    probe(world, 20.0, stuck=False)
    assert wanted(world, 24.0) == []
    assert world.managed["vn1"].check is not None
    assert wanted(world, 25.1) == [ProbeJobs]
    probe(world, 25.2, stuck=True)
    assert wanted(world, 28.8) == [KickJob]


def test_a_stop_that_passes_by_itself_is_left_alone() -> None:
    """slurmd takes its time to stop and continue a job: kicking it then would do harm."""
    world = back_at_work()
    probe(world, 0.6, stuck=True)
    assert wanted(world, 1.2) == [ProbeJobs]
    probe(world, 1.3, stuck=True)
    assert wanted(world, 3.0) == [ProbeJobs]
    probe(world, 3.1, stuck=False)
    assert wanted(world, 4.2) == [ProbeJobs]


def test_a_job_that_stays_stopped_is_kicked_and_given_time() -> None:
    """Kicked once, then looked at again; the next kick comes only after it had time to work."""
    world = back_at_work()
    probe(world, 0.6, stuck=True)
    probe(world, 4.0, stuck=True)
    assert wanted(world, 4.2) == [KickJob]
    world.apply(ch.Kicked("vn1", 1, BACK_S + 4.3))
    assert wanted(world, 4.4) == []
    probe(world, 5.0, stuck=True)
    assert wanted(world, 6.0) == [ProbeJobs]
    probe(world, 8.4, stuck=True)
    assert wanted(world, 8.6) == [KickJob]


def test_a_job_found_stopped_last_is_never_called_well() -> None:
    """The end of the time for late signals is no proof: the last look decides."""
    world = back_at_work()
    probe(world, 24.0, stuck=True)
    assert wanted(world, 27.0) == [ProbeJobs]
    assert world.managed["vn1"].check is not None
    assert wanted(world, 28.0) == [KickJob]


def test_a_kick_that_got_no_further_than_the_suspend_is_finished() -> None:
    """The daemon died in it: the next one knows from the journal that the suspend was its own."""
    world = back_at_work()
    probe(world, 0.6, stuck=True)
    probe(world, 4.0, stuck=True)
    assert wanted(world, 4.2) == [KickJob]
    anew = back_at_work(JobState.SUSPENDED)
    anew.apply(ch.NodeManaged(world.managed["vn1"]))
    assert wanted(anew, 4.4) == [ResumeJob]
    assert wanted(back_at_work(JobState.SUSPENDED), 4.4) == []


def test_a_kick_that_an_admin_overtook_leaves_the_job_to_them() -> None:
    """Slurm said that it was suspended just before; after a lost answer that may have been the kick."""
    for tries in (1, 2):
        world = back_at_work()
        probe(world, 0.6, stuck=True)
        probe(world, 4.0, stuck=True)
        assert wanted(world, 4.2) == [KickJob]
        key = KickJob(subject="vn1", generation=1, reason="", job_id="7").key
        for _ in range(1, tries):
            world.apply(ch.OperationStarted(key, BACK_S + 4.2, ""))
            world.apply(ch.OperationDone(key, BACK_S + 4.2, "no answer"))
        world.apply(ch.OperationStarted(key, BACK_S + 4.3, ""))
        world.apply(ch.AlreadySuspended("vn1", 1, key, "7"))
        world.apply(ch.JobSeen(replace(world.jobs["7"], state=JobState.SUSPENDED), BACK_S + 4.3))
        world.apply(ch.OperationDone(key, BACK_S + 4.3, ""))
        assert wanted(world, 4.4) == ([] if tries == 1 else [ResumeJob])


def test_why_nothing_is_looked_at_any_more() -> None:
    """An admin keeps its job suspended, or the job is just ending: each is said as it is."""
    for state, flags, why in (
        (JobState.SUSPENDED, frozenset[str](), "others keep its jobs suspended"),
        (JobState.COMPLETED, frozenset({"COMPLETING"}), "none of its jobs runs any more"),
    ):
        world = back_at_work()
        job = Job("7", 7, "htc", state, nodes=("vn1",), flags=flags)
        world.apply(ch.JobSeen(job, BACK_S))
        world.apply(ch.Tick(BACK_S + 0.1))
        world.apply(ch.SourceSeen("slurm", BACK_S + 0.1))
        world.apply(ch.SourceSeen("bm1", BACK_S + 0.1))
        reasons = [a.reason for a in plan(world, POLICIES).actions if isinstance(a, SetNode)]
        assert why in reasons
