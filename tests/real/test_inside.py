"""Machines within a job's allocation on real guests: on its node, its owner's, and gone when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import backfill
from backfill.core.model.actions import CreateInstance
from backfill.core.model.records import decode
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]
ROOT = Path(backfill.__file__).parents[1]


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("inside") as rig:
        rig.start(own_machines={"enabled": True, "inside": ["batch"]})
        yield rig


def test_a_program_runs_in_a_machine_on_the_jobs_own_node(rig: DaemonRig) -> None:
    """As its owner; the job has its output and its exit status, and nothing is left at its end."""
    job = script(rig, "sh -c 'hostname; id -u; exit 3'")
    rig.until(lambda: rig.state(job) == "FAILED", what=f"the end of job {job}")
    rig.until(lambda: not rig.nodes(), what="the end of its machine")
    name, user, *_ = said(rig, job).read_text().split()
    shown = rig.show(job)
    assert (shown["ExitCode"], shown["UserId"]) == ("3:0", f"ada({user})")
    steps = [decode(r.body) for r in rig.journal("intent")]
    created = [(s.subject, s.spec.host, s.spec.inside) for s in steps if isinstance(s, CreateInstance)]
    assert created == [(name, shown["NodeList"], job)]
    assert not any(rig.domains().values())
    assert "backfill-inside" not in rig.ctl("scontrol", "show", "reservation")


def test_what_runs_there_ends_with_the_job(rig: DaemonRig) -> None:
    """It is cancelled; nobody else was let in meanwhile, and the node takes the next job."""
    job = script(rig, "sleep 3600")
    rig.until(lambda: inner(rig, job), what="the program in its machine")
    (name,) = rig.nodes()
    other = rig.submit("-p", "htc", "-w", name, "--priority=1000000", "--wrap=true")
    rig.cancel(job)
    rig.until(lambda: not inner(rig, job), what="the end of what ran there")
    rig.until(lambda: name not in rig.nodes(), what="the end of its machine")
    assert rig.state(other) == "PENDING"
    rig.cancel(other)  # an instance of everybody was perhaps made for it, elsewhere
    assert name not in rig.domains()["bm1"]
    rig.release(rig.high("bm1"))


def script(rig: DaemonRig, program: str) -> str:
    """A job that has a node to itself, asks for a machine there, and has a program run in it."""
    launcher = f"PYTHONPATH={ROOT} /usr/bin/python3 -B -m backfill run --mpi none {program}"
    asks = ("-w", "bm1", "--exclusive", "--comment=backfill-vm:cpus=1,mem=256")
    return rig.submit("-p", "batch", *asks, "-o", str(said(rig, "%j")), "--wrap", launcher)


def said(rig: DaemonRig, job: str) -> Path:
    """What the script of a job has said."""
    return rig.lab.shared / "jobs" / f"{job}.said"


def inner(rig: DaemonRig, job: str) -> list[str]:
    """What runs in the machines of a job."""
    return rig.ctl("squeue", "-h", "-t", "R,CG", "-n", f"in-{job}", "-o", "%i").split()
