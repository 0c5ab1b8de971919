"""Slurm with ReturnToService=0 or 1: what stood still for longer than it had run is no reboot.

A guest's uptime does not count the time for which it stood still. To slurmctld, which reckons from
it when the node was booted, it looks as if that had been after the node's last answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab
from tests.real.releases import RELEASES

pytestmark = pytest.mark.real

_LONGER_S = 5.0


@pytest.fixture(scope="module", params=RELEASES)
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("service", slurm_version=request.param, extra_conf=("ReturnToService=1",)) as rig:
        yield rig


@pytest.mark.parametrize("rung", [PAUSE, SUSPEND], ids=["pause", "suspend"])
def test_a_long_stop_is_no_reboot(rig: DaemonRig, rung: dict[str, object]) -> None:
    """The job goes on, with no restart, and what its owner reads is true."""
    made_s = time.time()
    rig.restart(ladder=[rung, REQUEUE], limits={"max_instances": 1}, daemon={"poll_s": 0.5})
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.started(high)
    rig.becomes(name, "parked")
    stopped_s = time.time()
    lived_s = stopped_s - made_s + _LONGER_S
    rig.until(lambda: time.time() > stopped_s + lived_s, what="a stop longer than the guest's life")
    rig.release(high)
    rig.counting(low)
    assert rig.where(low) == (name, host)
    assert rig.show(low)["Restarts"] == "0"
    rig.until(lambda: "went on after a pause" in rig.ctl("scontrol", "show", "job", low))
    rig.finish(low)
    assert "unexpectedly rebooted" not in rig.ctl("cat", "/var/log/slurm/slurmctld.log")
