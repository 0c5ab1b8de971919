"""Guests at a site with proctrack/cgroup: what their slurmd lacks is told, whoever the daemon is."""

from __future__ import annotations

import pytest

from backfill.lab.spec import SLURM_USER
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]


@pytest.mark.parametrize("user", ["root", SLURM_USER])
def test_a_slurmd_that_ends_is_told_with_its_last_words(user: str) -> None:
    """Without IgnoreSystemdOnFailure=yes a guest without systemd does not come up."""
    with site("guest") as rig:
        rig.sh("ctl", "sed -i /IgnoreSystemdOnFailure/d /etc/slurm/cgroup.conf; scontrol reconfigure")
        rig.install(user, scale={"boot_within_s": 60})
        low = rig.low(start=False)
        name = rig.until(lambda: next(iter(rig.nodes()), ""), what="an instance for it")
        rig.becomes(name, "failed", "given-up")
        _, ended, said = _told(rig, name).partition("slurmd has ended")
        assert ended
        assert "cgroup" in said
        rig.cancel(low)
        rig.judge()


def _told(rig: SiteRig, name: str) -> str:
    return " ".join(rig.backfill("explain", name).split())
