"""What Slurm's books say of a job that stood still: told as it is, measured on each release."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from backfill.lab.roots import INSTALLED
from backfill.lab.spec import JOB_USER, SITE_RELEASES
from tests.real.daemon_rig import PAUSE, REQUEUE
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]
# Usage is charged once a minute (PriorityCalcPeriod of the site).
_STOP_S = 130.0
_TICK_S = 60.0
_SHORT_S = 30.0


@pytest.fixture(scope="module", params=SITE_RELEASES)
def installed(request: pytest.FixtureRequest) -> Iterator[SiteRig]:
    with site("books", request.param) as rig:
        rig.install(ladder=[PAUSE, REQUEUE])
        yield rig


def _charged_s(rig: SiteRig) -> float:
    """CPU seconds for which fair-share has charged the user; one CPU each is all that jobs here have."""
    argv = ["sshare", "-anPU", "-u", JOB_USER, "--format=RawUsage"]
    return sum(float(line) for line in rig.ctl(*argv).splitlines() if line)


def test_fair_share_charges_the_pause(installed: SiteRig) -> None:
    """Elapsed leaves it out, RawUsage does not; the owner and who asks are told, with the figure."""
    rig = installed
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    stopped_s, before_s = time.time(), _charged_s(rig)
    rig.until(lambda: time.time() > stopped_s + _STOP_S, what="a stop of some length")
    said = rig.backfill("explain", low)
    assert "for which it has stood still are charged as if it had run" in " ".join(said.split())
    rig.release(high)
    rig.counting(low)
    still_s = time.time() - stopped_s
    rig.until(lambda: "fair-share counts it" in rig.ctl("scontrol", "show", "job", low))
    rig.finish(low)
    # What was not charged yet comes at the next turns.
    rig.until(lambda: _charged_s(rig) - before_s > still_s - _TICK_S, what="its charge")
    ((elapsed, suspended),) = [line.split("|") for line in rig.booked(low, "elapsedraw", "suspended")]
    assert int(elapsed) < still_s
    assert suspended >= "00:02:00"
    rig.judge()


def test_a_job_that_begins_anew_after_a_pause(installed: SiteRig) -> None:
    """The books keep the pause of the first run; 22.05 takes it off the second one as well."""
    rig = installed
    rig.restart(ladder=[{"rung": "pause", "within_s": 300, "for_s": _SHORT_S}, REQUEUE])
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.until(lambda: rig.show(low)["Restarts"] == "1", what="its requeue")
    rig.counting(low)
    began_s = time.time()
    rig.until(lambda: time.time() > began_s + 10, what="a run of some length")
    rig.release(high)
    rig.finish(low)
    state, suspended = rig.booked(low, "state", "suspended")[-1].split("|")
    assert state == "COMPLETED"
    assert (suspended != "00:00:00") is (rig.lab.spec.slurm_version == INSTALLED)
    rig.judge()
