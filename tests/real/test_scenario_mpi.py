"""An MPI job on guests of two hosts stands still as a whole, moves in part, and its sums are right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.mpi_rig import MPI, RingJob

pytestmark = pytest.mark.real
# Nothing waits for its host when another one has room.
MIGRATE = {"rung": "migrate", "within_s": 600}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("mpi", mpi=True) as rig:
        yield rig


def test_a_job_over_two_guests_stands_still_as_a_whole_and_goes_on(rig: DaemonRig) -> None:
    """One host is taken: the guest of the other one runs on, but no rank of the job in it does."""
    rig.restart(ladder=[PAUSE, REQUEUE], **MPI)
    job = started(rig)
    (first, second), (taken, free) = job.nodes(), job.hosts()
    assert taken != free
    high = rig.high(taken)
    rig.becomes(first, "parked")
    rig.until(lambda: rig.state(job.id) == "SUSPENDED", what="the job suspended")
    rig.until(lambda: ranks_in(rig, free, second) == {"T"}, what="the other rank stopped")
    assert rig.nodes()[second]["phase"] == "ready"
    rig.release(high)
    rig.becomes(first, "ready")
    before = job.going()
    assert job.hosts() == [taken, free]
    assert job.finish() >= before


def test_one_guest_of_a_job_moves_and_the_sums_stay_right(rig: DaemonRig) -> None:
    """The host of one rank is taken for long: it goes on beside its peer, whose connections it keeps."""
    rig.restart(ladder=[MIGRATE, REQUEUE], **MPI)
    job = started(rig)
    (first, _), (taken, free) = job.nodes(), job.hosts()
    assert taken != free
    high = rig.high(taken)
    rig.until(lambda: rig.nodes()[first]["host"] == free, what="the move")
    before = job.going()
    assert job.hosts() == [free, free]
    assert rig.state(high) == "RUNNING"
    assert job.finish() >= before
    rig.release(high)


def started(rig: DaemonRig) -> RingJob:
    """A job of two ranks that has done its first rounds."""
    job = RingJob(rig, 2)
    job.going()
    return job


def ranks_in(rig: DaemonRig, host: str, name: str) -> set[str]:
    """The kernel's letters for the states of the ranks in a guest: T for one that was stopped."""
    look = "for p in $(pgrep -x ring); do cut -d' ' -f3 /proc/$p/stat; done"
    return set(rig.out_of_guest(host, name, look).split())
