"""A pilot that a compute element submits through blahp: what the submitter sees when it is pushed aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.extras import exported
from backfill.lab.layout import ROOT_MOUNT, user_ids
from backfill.lab.spec import CE, JOB_USER
from tests.real.condor_rig import PoolRig, ads, pool_lab
from tests.real.daemon_rig import PAUSE, REQUEUE

pytestmark = [pytest.mark.real, pytest.mark.soak]

PILOTS = {"name": "pilots", "like": "ospool", "partitions": ["htc"]}
BY_PAUSE = {**PILOTS, "stand_still_s": 4000, "ladder": [PAUSE, REQUEUE]}
BY_QUEUE = {**PILOTS, "ladder": [REQUEUE], "warn": "nothing"}
# What HTCondor calls a job's state (JobStatus).
IDLE, AT_WORK = 1, 2
_PILOT = """\
universe = grid
grid_resource = batch slurm
batch_queue = htc
executable = {home}/pilot.sh
transfer_executable = false
initialdir = {home}
output = pilot.out
error = pilot.err
log = pilot.log
queue
"""


class ElementRig:
    """The compute element of a lab with a pool."""

    def __init__(self, pool: PoolRig) -> None:
        self.pool, self.lab = pool, pool.lab
        self.home = exported(self.lab.dir) / "home/pilots"

    def submit(self) -> str:
        """Submit a pilot, from files that its guest sees at the same place."""
        self.home.mkdir()
        owner = user_ids(self.lab.dir / "etc", JOB_USER)
        shutil.copy(self.pool.script(), self.home / "pilot.sh")
        (self.home / "pilot.sub").write_text(_PILOT.format(home="/home/pilots"))
        for path in (self.home, *self.home.iterdir()):
            os.chown(path, *owner)
        said = self.ask("condor_submit", "-terse", "/home/pilots/pilot.sub", user=JOB_USER)
        return said.split()[0]

    def ask(self, *argv: str, user: str = "root") -> str:
        """Run a command there; its output."""
        done = self.lab.run(CE, argv, user=user)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def account(self, pilot: str) -> dict[str, Any]:
        """What the submitter's queue says of it; nothing once it has left."""
        found = ads(self.ask("condor_q", "-allusers", "-json", pilot))
        return found[0] if found else {}

    def number(self, pilot: str) -> str:
        """The name of its job in Slurm, such as "batch slurm … slurm/20260101/7"; its end comes last."""
        return str(self.account(pilot).get("GridJobId", ""))

    def looks(self) -> str:
        """When blahp last asked Slurm, by the file in which it keeps the answer for a minute."""
        kept = f"{ROOT_MOUNT}/var/tmp/slurm_cache_{JOB_USER}"
        told = self.lab.run(CE, ["find", kept, "-type", "f", "-printf", "%T@\\n"], check=True).stdout
        return max(told.split(), default="")

    def log(self) -> str:
        """Return the events of which the submitter was told."""
        return Path(self.home / "pilot.log").read_text()


@pytest.fixture(scope="module")
def element() -> Iterator[ElementRig]:
    with pool_lab("blahp", files=True, ce=True) as pool:
        pool.cluster.begin()
        yield ElementRig(pool)
        pool.clear()
        pool.cluster.settle()


def test_a_pilot_pushed_aside_is_never_reported_as_done(element: ElementRig) -> None:
    """Suspended it is at work, for all that its submitter sees; requeued it is idle, and at work again."""
    pool, rig = element.pool, element.pool.cluster
    rig.start(workloads=[BY_PAUSE], limits={"max_instances": 1})
    pilot = element.submit()
    rig.until(lambda: " slurm/" in element.number(pilot), what="the pilot's job in Slurm")
    job = element.number(pilot).rpartition("/")[2]
    name, _ = pool.payload(100_000, 0.2)
    pool.working(name)
    rig.until(lambda: element.account(pilot)["JobStatus"] == AT_WORK, what="it at work for its submitter")

    high = rig.high(rig.where(job)[1], "-t", "60")
    rig.until(lambda: rig.state(job) == "SUSPENDED", what="the pilot suspended")
    before = element.looks()
    rig.until(lambda: element.looks() > before, what="a look of blahp's at it")
    assert element.account(pilot)["JobStatus"] == AT_WORK
    rig.release(high)
    pool.working(name)

    rig.restart(workloads=[BY_QUEUE], limits={"max_instances": 1})
    high = rig.high(f"bm[1-{len(rig.lab.hosts)}]", "-N", str(len(rig.lab.hosts)), "--exclusive", "-t", "600")
    rig.until(lambda: rig.show(job)["Restarts"] == "1", what="the pilot given back to the queue")
    rig.until(lambda: element.account(pilot)["JobStatus"] == IDLE, what="it idle for its submitter")
    rig.release(high)
    rig.until(lambda: rig.state(job) == "RUNNING", what="the pilot at work again")
    rig.until(
        lambda: element.account(pilot)["JobStatus"] == AT_WORK, what="it at work for its submitter, too"
    )
    assert "Job terminated" not in element.log()
    assert "Job was held" not in element.log()
