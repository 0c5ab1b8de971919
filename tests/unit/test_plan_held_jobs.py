"""What is planned about jobs on our nodes that ended, started anew, or contradict each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import CancelJob, DeleteNode, DownNode, DriverAction, RequeueJob, TellJob
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import Cause, Condemned, HeldJob, ManagedNode, NodeStop, Phase
from backfill.core.model.plan import Plan, SetNode
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.unit.test_stops import destroyed

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
    ladder=Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=600.0), RungRule(Rung.SUSPEND, within_s=60.0))),
)
DRAINED = Node("vn1", NodeBase.IDLE, frozenset({"DRAIN"}), "backfill: it stands still")


def world(state: InstanceState, phase: Phase | None, *jobs: Job) -> World:
    """One host with one instance, these jobs, and a record in this phase, if any."""
    made = World()
    made.apply(ch.Tick(NOW_S - 20))
    tag = Tag("c", "vn1", 1)
    if phase is not None:
        held = tuple(HeldJob(j.id, j.restarts) for j in jobs if j.partition == "htc")
        since_s = NOW_S - 10
        node = ManagedNode(
            "vn1",
            "10.77.1.1/16",
            "bm1",
            1,
            phase,
            since_s,
            since_s,
            held=held,
            stop=NodeStop(since_s, kind=Rung.PAUSE),
        )
        made.apply(ch.NodeManaged(node))
    for at_s in (NOW_S - 20, NOW_S):
        made.apply(ch.Tick(at_s))
        made.apply(ch.HostSeen(Host("bm1", "bm1", Resources(2, 2000)), at_s))
        made.apply(ch.InstanceSeen(Instance("vn1", "bm1", state, tag, Resources(1, 256)), at_s))
        made.apply(ch.SourceSeen("bm1", at_s))
        made.apply(ch.NodeSeen(Node("bm1", NodeBase.ALLOCATED), at_s))
        made.apply(ch.NodeSeen(DRAINED, at_s))
        for job in jobs:
            made.apply(ch.JobSeen(job, at_s))
        made.apply(ch.SourceSeen("slurm", at_s))
    return made


def low(number: int, state: JobState = JobState.SUSPENDED, restarts: int = 0) -> Job:
    return Job(
        str(number),
        number,
        "htc",
        state,
        nodes=("vn1",),
        restarts=restarts,
        start_s=NOW_S - 100,
        time_limit_s=3600.0,
    )


def phase_of(made: Plan) -> Phase | None:
    """The phase that the plan gives to the node, if it gives it one."""
    return next((a.node.phase for a in made.actions if isinstance(a, SetNode)), None)


HIGH = Job("9", 9, "batch", JobState.RUNNING, nodes=("bm1",), start_s=NOW_S - 10, time_limit_s=300.0)


def test_only_jobs_that_have_not_ended_can_miss_their_deadline() -> None:
    """One of two jobs of a stopped instance has ended: its deadline is nobody's any more."""
    urgent = replace(low(7), deadline_s=NOW_S + 60)
    going = world(InstanceState.PAUSED, Phase.PARKED, urgent, low(8), HIGH)
    step, *_ = plan(going, POLICIES).actions
    assert isinstance(step, SetNode)
    assert "job 7 would miss its deadline" in step.reason
    over = replace(urgent, state=JobState.COMPLETED)
    assert plan(world(InstanceState.PAUSED, Phase.PARKED, over, low(8), HIGH), POLICIES).actions == ()


@pytest.mark.parametrize("again", [True, False])
def test_a_stale_copy_stays_so_when_slurm_has_forgotten_its_job(again: bool) -> None:
    """The next run of one of two jobs has ended elsewhere: the run that stands still never goes on.

    A job that ended while it stood still ran no second time: the other one goes back.
    """
    still = world(InstanceState.PAUSED, Phase.PARKED, low(7), low(8))
    still.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE), NOW_S))
    over = replace(low(7, JobState.COMPLETED, restarts=int(again)), nodes=("vn2",) if again else ("vn1",))
    still.apply(ch.JobSeen(over, NOW_S))
    assert (phase_of(plan(still, POLICIES)) is Phase.RETURNING) == (not again)
    still.apply(ch.JobGone("7", NOW_S))
    made = plan(still, POLICIES)
    assert (phase_of(made) is Phase.RETURNING) == (not again)
    kept = [r for r in made.refusals if r.code is Code.COPY_BESIDE]
    assert bool(kept) == again
    assert all("Slurm has requeued job 7 (restart 1, the copy here is of restart 0)" in why(r) for r in kept)


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_copy_without_a_record_may_be_of_an_earlier_run(restarts: int) -> None:
    """With the journal lost, only of a job that was never requeued is it known which run it is:

    of another one the copy is kept as it is, until somebody knows.
    """
    taken = world(InstanceState.PAUSED, None, low(7), low(8, restarts=restarts), HIGH)
    made = plan(taken, POLICIES)
    assert phase_of(made) is Phase.EVICTING
    step = made.actions[0]
    assert isinstance(step, SetNode)
    assert {held.id: held.sure for held in step.node.held} == {"7": True, "8": not restarts}
    assert ("whether its copy of job 8 is of that job's restart 1" in step.reason) == bool(restarts)


def test_a_running_copy_without_a_record_is_at_work() -> None:
    """Slurm's own daemon in it knows which run it is."""
    taken = world(InstanceState.RUNNING, None, low(7, JobState.RUNNING, restarts=3))
    assert phase_of(plan(taken, POLICIES)) is Phase.READY


def test_a_node_that_is_not_shown_but_has_a_job_is_left_alone() -> None:
    """Slurm contradicts itself: what it says is not acted upon."""
    odd = world(InstanceState.RUNNING, Phase.READY, low(7, JobState.RUNNING))
    odd.apply(ch.NodeGone("vn1", NOW_S))
    made = plan(odd, POLICIES)
    assert [a for a in made.actions if isinstance(a, DriverAction | SetNode)] == []
    assert any("yet shows job 7 on it: not believed" in why(r) for r in made.refusals)
    odd.apply(ch.JobGone("7", NOW_S))
    made = plan(odd, POLICIES)
    assert phase_of(made) is Phase.READY
    (step,) = made.actions
    assert isinstance(step, SetNode)
    assert step.node.suspicion is not None
    assert step.node.suspicion.cause is Cause.FORGOTTEN


def test_a_job_that_cannot_be_requeued_takes_its_node_down_once() -> None:
    """It had ended, and Slurm has not been read since: asking again brings no news."""
    left = world(InstanceState.RUNNING, Phase.REMOVING, low(7, JobState.RUNNING))
    left.apply(ch.InstanceGone("bm1", "vn1", NOW_S))
    destroyed(left)
    requeue = next(a for a in plan(left, POLICIES).actions if isinstance(a, RequeueJob))
    key = requeue.key
    left.apply(ch.OperationStarted(key, NOW_S, ""))
    left.apply(ch.OperationDone(key, NOW_S, "job 7: has ended: COMPLETED", retry=False))
    (down,) = plan(left, POLICIES).actions
    assert isinstance(down, DownNode)
    left.apply(ch.NodeSeen(replace(DRAINED, base=NodeBase.DOWN), NOW_S))
    made = plan(left, POLICIES)
    assert made.actions == ()
    assert [why(r) for r in made.refusals if r.subject == "vn1"] == ["job 7 is still seen there"]
    left.apply(ch.JobGone("7", NOW_S))
    (last,) = plan(left, POLICIES).actions
    assert isinstance(last, DeleteNode)


@pytest.mark.parametrize(
    ("reason", "said"), [("JobHeldAdmin", "an admin has to release it"), ("BeginTime", "over")]
)
@pytest.mark.parametrize("phase", [Phase.EVICTING, Phase.PARKED, Phase.RETURNING])
def test_the_owner_of_a_job_that_slurm_requeued_reads_that(phase: Phase, reason: str, said: str) -> None:
    """Held or not, in whatever phase it is found: what was said of the pause is no longer true."""
    still = world(InstanceState.PAUSED, phase, low(7))
    if phase is not Phase.RETURNING:
        still.apply(ch.JobSeen(HIGH, NOW_S))
    requeued = replace(low(7, JobState.PENDING, restarts=1), nodes=(), start_s=0.0, reason=reason)
    still.apply(ch.JobSeen(requeued, NOW_S))
    made = plan(still, POLICIES)
    for at_s in range(1, 16, 3):
        assert not [a for a in made.actions if isinstance(a, TellJob)]
        for step in made.actions:
            if isinstance(step, SetNode):
                still.apply(ch.NodeManaged(step.node))
        still.apply(ch.Tick(NOW_S + at_s))
        still.apply(ch.SourceSeen("slurm", NOW_S + at_s))
        made = plan(still, POLICIES)
        if phase_of(made) is Phase.REMOVING:
            break
    assert phase_of(made) is Phase.REMOVING
    (word,) = [a for a in made.actions if isinstance(a, TellJob)]
    assert word.text.startswith("backfill: Slurm put it back into the queue")
    assert said in word.text


def test_the_owner_of_a_job_that_is_ended_with_its_instance_reads_why() -> None:
    """Before it ends: afterwards slurmctld updates nothing of it."""
    lost = world(InstanceState.RUNNING, Phase.REMOVING, replace(low(7), requeue=False))
    condemned = replace(lost.managed["vn1"], condemned=Condemned(Cause.LOST, NOW_S))
    lost.apply(ch.NodeManaged(condemned))
    lost.apply(ch.InstanceGone("bm1", "vn1", NOW_S))
    destroyed(lost)
    actions = plan(lost, POLICIES).actions
    assert [a.job_id for a in actions if isinstance(a, CancelJob)] == ["7"]
    (word,) = [a for a in actions if isinstance(a, TellJob)]
    assert "ends, as it may not be requeued: its instance is gone" in word.text
