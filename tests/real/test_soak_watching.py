"""Without any hook the daemon sees by watching what hooks would tell it, and does the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("watching", hooks="none") as rig:
        rig.start(ladder=[PAUSE, REQUEUE], limits={"max_instances": 1, "max_per_host": 1})
        yield rig


def test_the_same_comes_of_watching(rig: DaemonRig) -> None:
    """The low job stands still while the high one runs, goes on after it, and is never lost; that
    the high one does not wait for the room is the one difference.
    """
    assert "PrologSlurmctld" not in rig.lab.slurm_conf.read_text()
    low = rig.low()
    name, host = rig.where(low)
    for _ in range(2):
        high = rig.high(host)
        rig.becomes(name, "parked")
        assert rig.state(low) == "SUSPENDED"
        assert rig.state(high) == "RUNNING"
        rig.release(high)
        rig.becomes(name, "ready")
        rig.counting(low)
    # A job that is cancelled before the daemon has seen it leaves everything as it was.
    rig.cancel(rig.high(host, start=False))
    rig.becomes(name, "ready")
    rig.counting(low)
    rig.finish(low)
    assert rig.where(low) == (name, host)
    assert rig.show(low)["Restarts"] == "0"
    assert rig.hook_complaints() == ""
