"""The part of the WorkloadManager contract that is about jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import ENDED, OUR_REASON, JobState
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.workload_rig import REASON, Rig, await_state, job, running


class JobContract:
    """Jobs: stopped and continued without loss, given back to the queue at most once per call."""

    def test_suspend_and_resume(self, rig: Rig) -> None:
        """The job keeps its node and restart count, and both calls can be repeated."""
        going = running(rig, rig.hosts[0])
        assert rig.manager.suspend_job(going)
        assert not rig.manager.suspend_job(going)
        seen = job(rig, going)
        assert (seen.state, seen.nodes, seen.restarts) == (JobState.SUSPENDED, (rig.hosts[0],), 0)
        assert seen.active
        rig.manager.resume_job(going)
        rig.manager.resume_job(going)
        assert await_state(rig, going, JobState.RUNNING).restarts == 0

    def test_suspend_while_the_node_is_silent(self, rig: Rig) -> None:
        """Slurm takes the order although the node cannot be asked."""
        going = running(rig, rig.hosts[0])
        with rig.silent(rig.hosts[0]):
            rig.manager.suspend_job(going)
            assert job(rig, going).state is JobState.SUSPENDED
        assert job(rig, going).nodes == (rig.hosts[0],)

    def test_a_job_that_does_not_run_cannot_be_suspended(self, rig: Rig) -> None:
        """Pending: BusyError. Ended or never heard of: NotFoundError."""
        held = rig.submit(rig.hosts[0], hold=True)
        with pytest.raises(BusyError):
            rig.manager.suspend_job(held)
        with pytest.raises(BusyError):
            rig.manager.resume_job(held)
        rig.manager.cancel_job(held)
        rig.until(lambda: job(rig, held).state in ENDED)
        for job_id in (held, "99999"):
            with pytest.raises(NotFoundError):
                rig.manager.suspend_job(job_id)
            with pytest.raises(NotFoundError):
                rig.manager.resume_job(job_id)

    @pytest.mark.parametrize("suspended", [False, True])
    def test_a_time_limit_is_set_and_not_added_to(self, rig: Rig, suspended: bool) -> None:
        """Higher, the same once more, and lower: in whole minutes, and the job stays as it is."""
        going = running(rig, rig.hosts[0])
        if suspended:
            rig.manager.suspend_job(going)
        before = job(rig, going)
        for asked_s, limit_s in ((36000.0, 36000.0), (36000.0, 36000.0), (7141.0, 7200.0)):
            rig.manager.set_time_limit(going, asked_s)
            assert job(rig, going).time_limit_s == limit_s
        assert replace(job(rig, going), time_limit_s=before.time_limit_s) == before

    def test_the_time_limit_of_a_job_that_is_over(self, rig: Rig) -> None:
        """Ended or never heard of: NotFoundError."""
        going = running(rig, rig.hosts[0])
        rig.manager.cancel_job(going)
        rig.until(lambda: job(rig, going).state in ENDED and not job(rig, going).flags)
        for job_id in (going, "99999"):
            with pytest.raises(NotFoundError):
                rig.manager.set_time_limit(job_id, 600.0)

    @pytest.mark.parametrize("suspended", [False, True])
    def test_requeue_starts_again_at_once(self, rig: Rig, suspended: bool) -> None:
        """The job runs again within seconds, once more restarted, also from SUSPENDED."""
        going = running(rig, rig.hosts[0])
        if suspended:
            rig.manager.suspend_job(going)
        rig.manager.requeue_job(going)
        rig.until(lambda: job(rig, going).state is JobState.RUNNING and not job(rig, going).flags)
        assert job(rig, going).restarts == 1

    def test_requeue_of_a_pending_job_changes_nothing(self, rig: Rig) -> None:
        """It is where requeue would put it."""
        held = rig.submit(rig.hosts[0], hold=True)
        before = job(rig, held)
        rig.manager.requeue_job(held)
        assert job(rig, held) == before

    def test_requeue_is_refused_where_the_owner_forbade_it(self, rig: Rig) -> None:
        """A --no-requeue job says so beforehand, and goes on running."""
        going = running(rig, rig.hosts[0], requeue=False)
        assert not job(rig, going).requeue
        with pytest.raises(RefusedError):
            rig.manager.requeue_job(going)
        assert job(rig, going).state is JobState.RUNNING

    def test_a_job_that_ended_is_never_started_again(self, rig: Rig) -> None:
        """Requeue of a finished job is an error and leaves it finished."""
        going = running(rig, rig.hosts[0])
        rig.finish(going)
        rig.until(lambda: job(rig, going).state in ENDED and not job(rig, going).flags)
        with pytest.raises(NotFoundError):
            rig.manager.requeue_job(going)
        seen = job(rig, going)
        assert (seen.state, seen.restarts) == (JobState.COMPLETED, 0)

    def test_requeue_from_a_silent_node_ends_with_the_node(self, rig: Rig) -> None:
        """Nothing confirms the end of the old run until the node is DOWN; then it is eligible."""
        host, _ = rig.hosts
        going = running(rig, host)
        with rig.silent(host):
            rig.manager.requeue_job(going)
            assert job(rig, going).restarts == 1
            assert not job(rig, going).active
            rig.manager.set_down(host, REASON)
            rig.until(lambda: not job(rig, going).holds_nodes)
            seen = job(rig, going)
            assert seen.restarts == 1
            assert 0 < seen.eligible_s <= rig.manager.observe().seen_s

    def test_cancel(self, rig: Rig) -> None:
        """The job ends; cancelling what has ended or never was is no error."""
        going = running(rig, rig.hosts[0])
        rig.manager.cancel_job(going)
        rig.manager.cancel_job(going)
        rig.until(lambda: not job(rig, going).holds_nodes)
        assert job(rig, going).state is JobState.CANCELLED
        rig.manager.cancel_job("99999")
        assert rig.manager.read_jobs(["99999"]) == {}

    def test_a_signal_reaches_a_job_that_runs_and_no_other(self, rig: Rig) -> None:
        """It ends by that; pending it is BusyError, and unknown NotFoundError."""
        held = rig.submit(rig.hosts[0], hold=True)
        with pytest.raises(BusyError):
            rig.manager.signal_job(held, "TERM")
        rig.manager.cancel_job(held)
        going = running(rig, rig.hosts[0])
        rig.manager.signal_job(going, "TERM")
        rig.until(lambda: job(rig, going).state in ENDED)
        with pytest.raises(NotFoundError):
            rig.manager.signal_job("99999", "TERM")

    def test_tell_changes_nothing_but_the_message(self, rig: Rig) -> None:
        """The job is as before; a job that Slurm does not know is an error."""
        going = running(rig, rig.hosts[0])
        before = job(rig, going)
        rig.manager.tell(going, f"{OUR_REASON} pushed aside: it's bm1's turn = \"now\"")
        rig.manager.tell(going, f"{OUR_REASON} went on")
        assert job(rig, going) == before
        with pytest.raises(NotFoundError):
            rig.manager.tell("99999", "hello")

    def test_unknown_jobs(self, rig: Rig) -> None:
        """Requeue of a job that Slurm does not know says so, and so does a text that is no id."""
        with pytest.raises(NotFoundError):
            rig.manager.requeue_job("99999")
        with pytest.raises(RefusedError):
            rig.manager.suspend_job("all")
        assert rig.manager.read_jobs(["99999"]) == {}
