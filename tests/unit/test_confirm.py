"""What is asked directly before work is destroyed, and which answers spare it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Instance, InstanceState, Tag
from backfill.core.model.lifecycle import Cause, HeldJob
from backfill.core.model.quantities import Resources
from backfill.engine.execute.confirm import end_job, spared
from backfill.engine.execute.instances import on_instance
from backfill.engine.execute.slurm import in_slurm
from backfill.engine.looking import Outside
from backfill.ports.errors import BusyError
from backfill.ports.workload import ClusterObservation
from tests.unit.test_stops import job

HELD = (HeldJob("7", 0), HeldJob("8", 0))
AGAIN = job("7", JobState.PENDING, 1)
OVER = job("8", JobState.COMPLETED)
SLURMS = frozenset({Cause.STALE, Cause.ENDED, Cause.MISSING, Cause.FORGOTTEN})
ORDERED = frozenset({Cause.LADDER, Cause.UNSTOPPED, Cause.RECLAIMED})


class Clock:
    """A clock that stands."""

    def now(self) -> float:
        return 1000.0

    def ahead(self) -> float:
        return 0.0


@dataclass
class Site:
    """Slurm and one hypervisor, as they are at this moment; what is done to jobs is noted."""

    jobs: dict[str, Job]
    place: Instance | None
    heard: bool = False
    done: list[str] = field(default_factory=list)

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        return {i: self.jobs[i] for i in ids if i in self.jobs}

    def observe_nodes(self, names: Sequence[str]) -> ClusterObservation:
        flags = frozenset() if self.heard else frozenset({"NOT_RESPONDING"})
        nodes = {name: Node(name, NodeBase.MIXED, flags) for name in names}
        here = {i: j for i, j in self.jobs.items() if not set(names).isdisjoint(j.nodes)}
        return ClusterObservation(1000.0, nodes, here)

    def read(self, host: str, name: str) -> Instance | None:
        return self.place

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        self.done.append(f"delete {name} of {generation} on {host}")

    def requeue_job(self, job_id: str) -> None:
        self.done.append(f"requeue {job_id}")

    def cancel_job(self, job_id: str) -> None:
        self.done.append(f"cancel {job_id}")

    @property
    def outside(self) -> Outside:
        return Outside(cast(Any, self), {"bm1": cast(Any, self)}, cast(Any, Clock()))


def site(
    *jobs: Job, state: InstanceState | None = InstanceState.PAUSED, heard: bool = False, **more: Any
) -> Site:
    place = None
    if state is not None:
        place = Instance("vn1", "bm1", state, Tag("c", "vn1", 1), Resources(2, 256), **more)
    return Site({j.id: j for j in jobs}, place, heard)


def why(found: Site, cause: Cause | None, held: tuple[HeldJob, ...] = HELD, taken: str = "") -> str:
    """Why the instance is spared; empty: it is not."""
    action = act.DeleteInstance(
        subject="vn1", generation=1, reason="a test", host="bm1", cause=cause, held=held, taken=taken
    )
    told = spared(found.outside, action)
    assert all(isinstance(change, ch.Unconfirmed) for change in told)
    return told[0].reason if told and isinstance(told[0], ch.Unconfirmed) else ""


@pytest.mark.parametrize("cause", [None, *Cause])
def test_what_is_gone_already_is_not_asked_about(cause: Cause | None) -> None:
    """Nothing is left to lose."""
    assert why(site(job("7"), job("8"), state=None), cause) == ""


def test_the_life_that_was_asked_about_is_the_one_that_ends() -> None:
    """Where the name has another one meanwhile, what was asked says nothing of that."""
    found = site(state=InstanceState.OFF)
    end = act.DeleteInstance(subject="vn1", generation=1, reason="a test", host="bm1", cause=Cause.OLD)
    on_instance(found.outside, end)
    assert found.done == ["delete vn1 of 1 on bm1"]


@pytest.mark.parametrize("cause", sorted(SLURMS))
def test_a_held_job_that_slurm_shows_spares_its_copy(cause: Cause) -> None:
    """Also beside one that began anew: that one alone condemns nobody."""
    assert "job 8" in why(site(AGAIN, job("8")), cause)


@pytest.mark.parametrize("cause", sorted(SLURMS))
def test_a_job_that_has_come_since_spares_it_as_well(cause: Cause) -> None:
    """The plan did not know of it: it may be at work in there."""
    assert "job 9" in why(site(AGAIN, OVER, job("9", JobState.RUNNING)), cause)


@pytest.mark.parametrize("cause", sorted(SLURMS))
def test_without_any_job_left_it_goes(cause: Cause) -> None:
    """Slurm bears it out."""
    assert why(site(AGAIN, OVER), cause) == ""


def test_a_copy_that_is_not_stale_after_all_is_spared() -> None:
    """Both have ended, and nothing began anew: that takes another reason, and its own readings."""
    assert "another run of its jobs" in why(site(OVER), Cause.STALE)


@pytest.mark.parametrize("cause", sorted(ORDERED))
@pytest.mark.parametrize("requeue", [True, False])
def test_what_people_or_the_ladder_order_spares_jobs_that_may_not_start_anew(
    cause: Cause, requeue: bool
) -> None:
    """One of several is enough."""
    found = site(job("7"), replace(job("8"), requeue=requeue), state=InstanceState.RUNNING)
    assert bool(why(found, cause)) == (not requeue)


@pytest.mark.parametrize("cause", [Cause.LADDER, Cause.UNSTOPPED])
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.COMPLETED])
def test_a_host_that_nobody_has_any_more_is_no_reason(cause: Cause, state: JobState) -> None:
    """Slurm says who has the host's own node at this moment; for other reasons it is not asked."""
    other = replace(job("9", state), nodes=("bm1",))
    found = site(job("7"), job("8"), other, state=InstanceState.RUNNING)
    free = state is JobState.COMPLETED
    assert why(found, cause, taken="bm1") == ("bm1 is free again" if free else "")
    assert why(found, cause) == ""


@pytest.mark.parametrize("state", [InstanceState.PAUSED, InstanceState.SUSPENDED])
def test_what_was_stopped_after_all_is_not_destroyed_for_not_stopping(state: InstanceState) -> None:
    """It came late, and it came."""
    assert str(state) in why(site(job("7"), job("8"), state=state), Cause.UNSTOPPED)


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.VANISHED, Cause.REBOOTED])
@pytest.mark.parametrize("state", [s for s in InstanceState if s is not InstanceState.UNKNOWN])
def test_its_hypervisor_is_asked_about_what_its_hypervisor_told(cause: Cause, state: InstanceState) -> None:
    """Off or crashed there is nothing in it; in all other states its work is there."""
    gone = state in (InstanceState.OFF, InstanceState.CRASHED)
    assert bool(why(site(job("7"), job("8"), state=state), cause)) == (not gone)
    assert why(site(job("7"), job("8"), state=state, restarted=True), cause) == ""


@pytest.mark.parametrize("cause", list(Cause))
def test_an_instance_whose_state_is_unknown_is_spared(cause: Cause) -> None:
    """Unknown is never no."""
    assert why(site(AGAIN, OVER, state=InstanceState.UNKNOWN, problem="EIO"), cause)


def test_a_guest_that_slurm_hears_again_is_spared() -> None:
    """It was silent for long, and answers in the last moment."""
    assert why(site(job("7"), heard=True), Cause.SILENT)
    assert why(site(job("7")), Cause.SILENT) == ""


def test_an_empty_one_is_spared_for_a_job_that_has_just_come() -> None:
    """It was to go because nobody needed it."""
    assert "job 9" in why(site(job("9", JobState.RUNNING)), None, ())
    assert why(site(OVER), None, ()) == ""


def test_another_life_is_no_old_copy() -> None:
    """The name has a newer generation there by now."""
    assert why(site(job("7")), Cause.OLD) == ""
    found = site(job("7"))
    assert found.place is not None
    found.place = replace(found.place, tag=Tag("c", "vn1", 2))
    assert "generation 2" in why(found, Cause.OLD)


@pytest.mark.parametrize("verb", ["requeue", "cancel"])
def test_a_job_is_ended_only_in_the_run_that_was_meant(verb: str) -> None:
    """Requeued by somebody else meanwhile, or with a copy that is there after all, it is left alone."""
    kind = act.RequeueJob if verb == "requeue" else act.CancelJob
    action = kind(subject="vn1", generation=1, reason="a test", job_id="7", restarts=0, host="bm1")
    lost = site(job("7"), state=None)
    end_job(lost.outside, action)
    assert lost.done == [f"{verb} 7"]
    for found in (site(AGAIN, state=None), site(job("7"), state=InstanceState.PAUSED)):
        end_job(found.outside, action)
        assert found.done == []


def test_a_job_inside_of_another_is_left_alone_while_that_run_is_there() -> None:
    """Asked at the last moment: suspended is there too, and another run of it is not."""
    action = act.EndInside(subject="vn1", generation=1, reason="a test", job_id="8", of="7", restarts=0)
    for state in (JobState.RUNNING, JobState.SUSPENDED):
        found = site(job("7", state), job("8"))
        with pytest.raises(BusyError, match="job 8: job 7, in whose machines it is, is still there"):
            in_slurm(found.outside, action)
        assert found.done == []
    over = (job("7", JobState.COMPLETED), job("7", JobState.PENDING), job("7", JobState.RUNNING, 1))
    for one in over:
        found = site(one, job("8"))
        in_slurm(found.outside, action)
        assert found.done == ["cancel 8"]


def test_a_job_inside_of_another_is_left_alone_where_that_is_only_not_shown() -> None:
    """It ends if Slurm had not shown the other for long, and does not now either."""
    action = act.EndInside(subject="vn1", generation=1, reason="a test", job_id="8", of="7", restarts=0)
    found = site(job("8"))
    with pytest.raises(BusyError, match="job 8: Slurm does not show job 7, in whose machines it is"):
        in_slurm(found.outside, action)
    assert found.done == []
    in_slurm(found.outside, replace(action, missing=True))
    assert found.done == ["cancel 8"]
    back = site(job("7"), job("8"))
    with pytest.raises(BusyError, match="is still there"):
        in_slurm(back.outside, replace(action, missing=True))


def test_a_job_is_left_alone_while_nobody_knows_which_generation_is_there() -> None:
    """Its host shows an instance that has lost its notes: it may hold the very copy."""
    action = act.RequeueJob(subject="vn1", generation=1, reason="a test", job_id="7", restarts=0, host="bm1")
    found = site(job("7"), state=InstanceState.UNKNOWN, problem="its metadata is gone")
    assert found.place is not None
    found.place = replace(found.place, tag=Tag("c", "vn1", 0))
    told = end_job(found.outside, action)
    assert found.done == []
    assert "its metadata is gone" in str(told[0])
