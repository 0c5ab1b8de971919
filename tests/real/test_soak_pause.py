"""A real pause of twenty minutes: whatever waits in it goes on, and keeps its meaning."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.releases import RELEASES

pytestmark = [pytest.mark.real, pytest.mark.soak]

PAUSE_S = float(os.environ.get("BACKFILL_SOAK_S", "1200"))
LOOK_EVERY_S = 15.0
NEAR_ITS_LIMIT_MIN = 3


@pytest.fixture(scope="module", params=RELEASES)
def rig(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("soak", slurm_version=request.param) as made:
        made.begin()
        made.start(
            ladder=[{k: v for k, v in PAUSE.items() if k != "for_s"}, REQUEUE],
            demand={"max_nodes": 2},
            limits={"max_instances": 4, "max_per_host": 2},
            scale={"boot_within_s": 300},
        )
        yield made
        made.settle()


def limit_s(rig: DaemonRig, job: str) -> float:
    """When Slurm would end the job, epoch seconds."""
    return time.mktime(time.strptime(rig.show(job)["EndTime"], "%Y-%m-%dT%H:%M:%S"))


def test_everything_survives_a_long_pause(rig: DaemonRig, tmp_path: Path) -> None:
    """Both hosts are wanted for twenty minutes: an array task near its time limit that may not be
    requeued, a job on two nodes and an srun client all go on as if nothing had been.
    """
    limit = ("-t", str(NEAR_ITS_LIMIT_MIN))
    near = rig.low("--array=1-1", "--no-requeue", *limit, start=False)
    wide = rig.low("-N", "2", "-n", "2", start=False)
    count = "for i in $(seq 1 60); do echo $i; sleep 1; done"
    said = tmp_path / "srun"
    with said.open("w") as out:
        client = rig.lab.popen("ctl", ["srun", "-p", "htc", "bash", "-c", count], stdout=out)
    lows = (near, wide)
    for job in lows:
        rig.counting(job, limit_s=300)
    rig.until(lambda: said.read_text().startswith("1\n"), what="the client's first line")

    high = rig.high("bm[1-2]", "-N", "2", "--exclusive")
    began_s = rig.started(high)
    rig.until(lambda: {rig.state(job) for job in lows} == {"SUSPENDED"}, what="both suspended")
    before_s = limit_s(rig, near)
    while time.time() < began_s + PAUSE_S:
        states = {name: state for name, state in rig.node_states().items() if name.startswith("vn")}
        assert not [name for name, state in states.items() if "DOWN" in state], states
        assert {rig.state(job) for job in lows} == {"SUSPENDED"}
        assert client.poll() is None
        time.sleep(LOOK_EVERY_S)  # nothing is awaited here: this is the pause itself
    rig.assert_silent(near, began_s, rig.release(high))

    for job in lows:
        rig.counting(job)
    # They speak as soon as their guests are thawed; Slurm is told a moment later.
    rig.until(lambda: {rig.state(job) for job in lows} == {"RUNNING"}, what="both resumed")
    assert limit_s(rig, near) >= before_s + PAUSE_S - 30  # its clock stood still
    rig.finish(*lows)
    assert {rig.show(job)["Restarts"] for job in lows} == {"0"}
    assert client.wait(timeout=180) == 0
    assert said.read_text().split() == [str(i) for i in range(1, 61)]
