"""The hook as slurmd's Prolog on each host, over TCP: batch and interactive jobs evict."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = pytest.mark.real

POLICY: dict[str, Any] = {"ladder": [PAUSE, REQUEUE], "limits": {"max_instances": 1}}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("host", hooks="host") as rig:
        rig.start(**POLICY)
        yield rig
        assert rig.hook_complaints() == ""


def test_batch_job_evicts(rig: DaemonRig) -> None:
    """The script's first command finds the host silent, and the work returns afterwards."""
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    began_s = rig.started(high)
    rig.becomes(name, "parked")
    rig.assert_silent(low, began_s, rig.release(high))
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_srun_evicts(rig: DaemonRig) -> None:
    """The first task finds the host silent."""
    low = rig.low()
    _, host = rig.where(low)
    began_s, ended_s = rig.interactive("srun", host)
    rig.counting(low)
    rig.assert_silent(low, began_s, ended_s)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
