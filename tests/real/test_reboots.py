"""The controller or a host of a site loses its power or is booted anew: what can outlive that, does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from backfill.lab.spec import SLURM_USER
from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND
from tests.real.site_rig import SiteRig, rig_at_site
from tests.real.slurm_lab import written_s

pytestmark = [pytest.mark.real, pytest.mark.soak]

# Counts in the guest's memory and tells nobody: the tally would be gone with the controller.
_COUNTS = (
    "n=0; while [ ! -e /tmp/enough-$SLURM_JOB_ID ]; do n=$((n+1)); echo $n >/tmp/new; "
    "mv /tmp/new /tmp/n-$SLURM_JOB_ID; sleep 0.1; done"
)
RUNGS = pytest.mark.parametrize("rung", [PAUSE, SUSPEND], ids=["pause", "suspend"])
HOWS = pytest.mark.parametrize("orderly", [False, True], ids=["power", "orderly"])


class Counting(SiteRig):
    """Jobs that count in their guests' memory, beside those that hold a host."""

    def counts(self) -> tuple[str, str, str]:
        """Submit such a job, and wait for its first numbers; the job, its node and its host."""
        job = self.submit("-p", "htc", "--wrap", _COUNTS)
        self.until(lambda: self.state(job) == "RUNNING", what=f"the start of job {job}")
        name, host = self.where(job)
        self.until(lambda: self.count(job) > 3, what="its first numbers")
        return job, name, host

    def count(self, job: str) -> int:
        """How far the job has counted in its guest; 0 before it has begun."""
        name, host = self.where(job)
        return int(self.out_of_guest(host, name, f"cat /tmp/n-{job} 2>/dev/null || echo 0") or 0)

    def goes_on(self, job: str, name: str, above: int) -> None:
        """Wait until the job counts on from where it was, without a new start; then let it end."""
        self.until(lambda: self.state(job) == "RUNNING", what=f"job {job} running again")
        self.becomes(name, "ready")
        self.until(lambda: self.count(job) > above + 3, what=f"job {job} counting on")
        assert self.show(job)["Restarts"] == "0", self.picture()
        self.ends(job)

    def ends(self, job: str) -> None:
        """Let the job end, and wait for it."""
        name, host = self.where(job)
        self.out_of_guest(host, name, f"touch /tmp/enough-{job}")
        self.until(partial(self._completed, job), what=f"the end of job {job}")

    def written(self, job: str) -> None:
        """Wait until slurmctld has written this job down: it loses with its power what it has not."""
        asked_s = time.time()
        self.ctl("scontrol", "update", f"JobId={job}", "Comment=write it down")
        saved = self.lab.slurm_conf.parents[2] / "var/lib/slurm/slurmctld/job_state"
        self.until(lambda: written_s(saved) > asked_s, what=f"job {job} on disk")

    def boot(self, machine: str, orderly: bool) -> None:
        """Start a machine anew, and wait until the daemon sees everything."""
        self.lab.reboot(machine, orderly=orderly)
        self.until(self.sees_all, what="the daemon's first picture")


@pytest.fixture(scope="module")
def installed() -> Iterator[Counting]:
    with rig_at_site(Counting, "reboot") as rig:
        rig.install(SLURM_USER)
        yield rig


@pytest.fixture
def rig(installed: Counting) -> Iterator[Counting]:
    yield installed
    for user in ("ada", "bob"):  # after a test that failed
        installed.ctl("scancel", "-u", user)
    installed.judge()


@HOWS
@RUNGS
def test_the_controller_while_work_stands_still(
    rig: Counting, rung: dict[str, object], orderly: bool
) -> None:
    """slurmctld and the daemon come back by their units; who waits goes on when its host is free."""
    rig.restart(ladder=[rung, REQUEUE])
    low, name, host = rig.counts()
    at = rig.count(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.written(high)
    rig.boot("ctl", orderly)
    assert rig.becomes(name, "parked")["host"] == host
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.goes_on(low, name, at)


def test_the_controller_while_work_comes_back(rig: Counting) -> None:
    """Its power fails between a host's return and its guest's: whatever Slurm remembers, the work goes on."""
    rig.restart(ladder=[PAUSE, REQUEUE])
    low, name, host = rig.counts()
    at = rig.count(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.written(high)
    rig.release(high)
    rig.boot("ctl", orderly=False)
    rig.ctl("scancel", high)  # its end was not written down, and Slurm takes long to see that it is over
    rig.goes_on(low, name, at)


def test_a_host_with_work_on_disk(rig: Counting) -> None:
    """Its power fails; the memory in the common directory outlives it, and the work goes on from there."""
    rig.restart(ladder=[SUSPEND, REQUEUE], proof="memory")
    low, name, host = rig.counts()
    at = rig.count(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.until(lambda: rig.instance(name).get("state") == "suspended", what="its memory on disk")
    rig.boot(host, orderly=False)
    rig.ctl("scancel", high)  # it died with its host, and Slurm would begin it anew
    rig.goes_on(low, name, at)


def test_a_host_with_work_in_memory(rig: Counting) -> None:
    """What stood still in a memory that is gone begins anew, once; its node works again."""
    rig.restart(ladder=[PAUSE, REQUEUE], limits={"missing_s": 10})
    low, name, host = rig.counts()
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.boot(host, orderly=False)
    rig.ctl("scancel", high)
    rig.until(lambda: rig.show(low)["Restarts"] == "1" and rig.state(low) == "RUNNING", what="its new start")
    rig.until(lambda: rig.count(low) > 3, what="its first numbers")
    assert rig.show(low)["Restarts"] == "1"
    rig.ends(low)


def test_a_host_that_was_emptied_before(rig: Counting) -> None:
    """As docs/upgrading.md tells it: `backfill evict`, boot, `backfill evict --undo`; nothing is lost."""
    rig.restart(ladder=[SUSPEND, REQUEUE], proof="memory")
    low, name, host = rig.counts()
    at = rig.count(low)
    rig.backfill("evict", host, "--reason", "a new kernel")
    rig.until(lambda: rig.instance(name).get("state") == "suspended", what="its memory on disk")
    rig.boot(host, orderly=True)
    assert rig.becomes(name, "parked")["host"] == host
    rig.backfill("evict", host, "--undo")
    rig.goes_on(low, name, at)
