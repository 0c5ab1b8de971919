"""A queue added up by kinds of jobs that count alike is the queue added up job by job."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Flavour
from backfill.core.policies.demand import Demand
from backfill.core.world import World

FLAVOUR = Flavour(cpus=2, memory_mb=1000)
REASONS = ("Resources", "Priority", "", "Dependency", "BeginTime", "ReqNodeNotAvail, may be")

waiting = st.builds(
    Job,
    id=st.integers(1, 9).map(str),
    raw_id=st.just(1),
    partition=st.sampled_from(("htc", "other")),
    state=st.sampled_from((JobState.PENDING, JobState.PENDING, JobState.RUNNING)),
    qos=st.sampled_from(("", "low")),
    num_nodes=st.integers(1, 3),
    cpus=st.integers(1, 4),
    memory_mb=st.sampled_from((0, 500, 2000)),
    eligible_s=st.sampled_from((0.0, 50.0, 150.0)),
    time_limit_s=st.sampled_from((None, 60.0, 600.0)),
    reason=st.sampled_from(REASONS),
    exclusive=st.booleans(),
)
demands = st.builds(Demand, st.integers(1, 3), st.integers(1, 3), st.sampled_from((0.0, 100.0)))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(waiting, st.integers(1, 9)), max_size=40), demands)
def test_kinds_add_up_to_the_same(news: list[Job | int], demand: Demand) -> None:
    """After any news about jobs, in every partition; a number: that job is gone."""
    world = World()
    for turn, one in enumerate(news, 1):
        if isinstance(one, Job):
            world.apply(ch.JobSeen(one, float(turn)))
        else:
            world.apply(ch.JobGone(str(one), float(turn)))
        known = [job for job in world.jobs.values() if job.state is JobState.PENDING]
        assert world.job_index.partitions_waiting() == {job.partition for job in known}
        for partitions in (("htc",), ("htc", "other"), ("none",)):
            there = [job for job in known if job.partition in partitions]
            assert sorted(world.job_index.pending(partitions), key=_id) == sorted(there, key=_id)
            found = demand.need_of(world.job_index.kinds_pending(partitions), FLAVOUR, 100.0)
            assert found == demand.need(there, FLAVOUR, 100.0)
            qos = [(job.qos, id_) for job, ids in world.job_index.kinds_pending(partitions) for id_ in ids]
            assert sorted(qos) == sorted((job.qos, job.id) for job in there)


def _id(job: Job) -> str:
    return job.id


def test_whatever_else_a_job_says_makes_no_other_kind() -> None:
    """Names, users and times tell jobs apart, not what demand wants for them."""
    world = World()
    one = Job("1", 1, "htc", JobState.PENDING, reason="Priority")
    for number in range(1, 20):
        other = replace(one, id=str(number), raw_id=number, user=f"u{number}", submit_s=number)
        world.apply(ch.JobSeen(other, 1.0))
    assert len(list(world.job_index.kinds_pending(("htc",)))) == 1
