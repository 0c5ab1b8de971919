"""An MPI job on guests of two hosts stands still as a whole, moves in part, and its sums are right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import backfill
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.mpi_rig import MPI, RingJob

pytestmark = [pytest.mark.real, pytest.mark.gate]
ROOT = Path(backfill.__file__).parents[1]
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


def test_a_job_on_bare_metal_has_machines_on_its_nodes_and_runs_mpi_over_them(rig: DaemonRig) -> None:
    """Both hosts are its own; a launcher in its script starts the ranks, and nothing is left at its end.

    By Slurm's PMIx, then by Open MPI's own mpirun, for which no machine has an sshd.
    """
    rig.restart(own_machines={"enabled": True, "inside": ["batch"]}, **MPI)
    by_pmix = f"{launcher(rig)} -np 2 /usr/local/bin/ring 20 10"
    by_mpirun = f"{launcher(rig)} --mpi mpirun -np 2 /usr/local/bin/ring 30 10"
    job = script(rig, f"{by_pmix} && {by_mpirun}")
    state = rig.ended(job)
    said = (rig.lab.shared / "jobs" / f"{job}.said").read_text()
    assert state == "COMPLETED", said
    assert re.search(r"ring 2 20 [0-9a-f]{16} ok", said), said
    assert re.search(r"ring 2 30 [0-9a-f]{16} ok", said), said
    rig.until(lambda: not rig.nodes(), what="the end of its machines")
    assert not any(rig.domains().values())
    assert "backfill-inside" not in rig.ctl("scontrol", "show", "reservation")


def test_what_runs_in_them_ends_with_the_job(rig: DaemonRig) -> None:
    """It is cancelled while a program runs there, of which nothing is left, nor of the machines."""
    rig.restart(own_machines={"enabled": True, "inside": ["batch"]}, **MPI)
    job = script(rig, f"{launcher(rig)} --mpi none -np 2 sleep 3600")
    rig.until(lambda: inner(rig, job), what="the program in its machines")
    (other,) = inner(rig, job)
    assert rig.show(other)["UserId"] == rig.show(job)["UserId"]
    rig.cancel(job)
    rig.until(lambda: not inner(rig, job), what="the end of what ran there")
    rig.until(lambda: not rig.nodes(), what="the end of its machines")
    assert not any(rig.domains().values())


def launcher(rig: DaemonRig) -> str:
    """`backfill run`, as a job's script calls it."""
    return f"PYTHONPATH={ROOT} /usr/bin/python3 -B -m backfill run"


def script(rig: DaemonRig, line: str) -> str:
    """A job with both hosts to itself that asks for a machine on each, and does this there."""
    said = rig.lab.shared / "jobs" / "%j.said"
    asks = ("--exclusive", "--comment=backfill-vm:cpus=1,mem=400")
    return rig.submit("-p", "batch", "-N", "2", *asks, "-o", str(said), "--wrap", line)


def inner(rig: DaemonRig, job: str) -> list[str]:
    """What runs in the machines of a job."""
    return rig.ctl("squeue", "-h", "-t", "R", "-n", f"in-{job}", "-o", "%i").split()


def started(rig: DaemonRig) -> RingJob:
    """A job of two ranks that has done its first rounds."""
    job = RingJob(rig, 2)
    job.going()
    return job


def ranks_in(rig: DaemonRig, host: str, name: str) -> set[str]:
    """The kernel's letters for the states of the ranks in a guest: T for one that was stopped."""
    look = "for p in $(pgrep -x ring); do cut -d' ' -f3 /proc/$p/stat; done"
    return set(rig.out_of_guest(host, name, look).split())
