"""A site with ReturnToService 0 or 1: what stood still for longer than it had run is no reboot."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backfill.lab import roots
from backfill.lab.spec import SLURM_USER
from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]
_LONGER_S = 5.0
_SITES = [
    (roots.INSTALLED, 0, SLURM_USER, SUSPEND),
    (roots.INSTALLED, 1, "root", PAUSE),
    ("24.11", 0, "root", PAUSE),
    ("24.11", 1, SLURM_USER, SUSPEND),
]


@pytest.mark.parametrize(("release", "service", "user", "rung"), _SITES, ids=str)
def test_a_long_stop_is_no_reboot(release: str, service: int, user: str, rung: dict[str, object]) -> None:
    """slurmctld reckons the boot from slurmd's uptime, which leaves the stop out; the job goes on."""
    with _installed(release, service, user, rung) as rig:
        made_s = time.time()
        low = rig.low()
        name, host = rig.where(low)
        high = rig.takes("bob", host)
        rig.becomes(name, "parked")
        until_s = 2 * time.time() - made_s + _LONGER_S
        rig.until(lambda: time.time() > until_s, what="a stop longer than the guest's life")
        rig.release(high)
        rig.counting(low)
        assert rig.where(low) == (name, host)
        assert rig.show(low)["Restarts"] == "0"
        rig.until(lambda: "went on after a pause" in rig.ctl("scontrol", "show", "job", low))
        rig.finish(low)
        assert "unexpectedly rebooted" not in rig.ctl("cat", "/var/log/slurm/slurmctld.log")
        rig.judge()


@contextmanager
def _installed(release: str, service: int, user: str, rung: dict[str, object]) -> Iterator[SiteRig]:
    with site("service", release, extra_conf=(f"ReturnToService={service}",)) as rig:
        rig.install(user, ladder=[rung, REQUEUE])
        yield rig
