"""Eviction and return on real parts: a low-priority job is pushed aside and loses nothing.

On every release of Slurm, of which the guests' slurmd is as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backfill.core.model.cluster import NOWHERE
from tests.real.daemon_rig import MIGRATE, PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab
from tests.real.releases import RELEASES

pytestmark = pytest.mark.real

BY_PAUSE = {"ladder": [PAUSE, REQUEUE]}
BY_SUSPEND = {"ladder": [SUSPEND, REQUEUE], "proof": "memory"}
PAUSE_THEN_MOVE = {"ladder": [PAUSE, MIGRATE, REQUEUE]}
SUSPEND_THEN_MOVE = {"ladder": [SUSPEND, MIGRATE, REQUEUE], "proof": "memory"}
MOVE_FIRST = {"ladder": [MIGRATE, PAUSE, REQUEUE]}
ONE = {"limits": {"max_instances": 1}}


@pytest.fixture(scope="module", params=RELEASES)
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("evict", slurm_version=request.param) as rig:
        yield rig


def test_pause_and_return_on_the_same_host(rig: DaemonRig) -> None:
    """The high-priority job finds a silent host; afterwards the paused job counts on, there."""
    rig.restart(**BY_PAUSE, **ONE)
    low = rig.low()
    name, host = rig.where(low)
    shown = rig.ctl("scontrol", "show", "node", name)
    assert f" Version={rig.lab.spec.slurm_version}." in shown
    high = rig.high(host)
    began_s = rig.started(high)
    rig.becomes(name, "parked")
    assert rig.instances()[name] == (host, "paused")
    assert rig.state(low) == "SUSPENDED"
    rig.assert_silent(low, began_s, rig.release(high))
    rig.counting(low)
    assert rig.where(low) == (name, host)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
    # Slurm's stop signal could not be sent to the hidden node, so nothing had to be set going.
    asked = [r.body["t"] for r in rig.journal("intent")]
    assert "KickJob" not in asked
    assert asked.index("SetAddress") < asked.index("SuspendJob")
    assert NOWHERE not in rig.lab.run("ctl", ["scontrol", "show", "node", name], check=True).stdout


@pytest.mark.parametrize(("rung", "there"), [(BY_PAUSE, "paused"), (BY_SUSPEND, "suspended")])
def test_a_lost_journal_loses_no_work(rig: DaemonRig, rung: dict[str, Any], there: str) -> None:
    """Without its book the daemon takes over what stands still, by its tags, and brings it back."""
    rig.restart(**rung, **ONE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.kill()
    for file in (rig.lab.dir / "daemon").glob("journal.db*"):
        file.unlink()
    changes: dict[str, Any] = {**rung, **ONE}
    rig.start(**changes)
    rig.becomes(name, "parked")
    assert rig.instances()[name] == (host, there)
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    assert rig.where(low) == (name, host)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_the_way_of_the_hook_is_proven_by_a_real_call(rig: DaemonRig) -> None:
    """As SlurmUser, who is not root; the daemon that runs answers, and believes it."""
    rig.restart(**BY_PAUSE, **ONE)
    said = rig.with_policy("daemon", "--check").strip()
    assert f"hook {rig.lab.hook_path}, run by slurm (uid " in said
    assert "was answered by the daemon that runs" in said
    assert said.endswith("fits the cluster")
    assert rig.ask("status")["hooks_not_believed"] == []


def test_suspend_frees_the_memory_first(rig: DaemonRig) -> None:
    """With proof = memory the job starts only after the guest's emulator is gone."""
    rig.restart(**BY_SUSPEND, **ONE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.submit("-p", "batch", "-w", host, "--wrap", f"ps -e >{rig.lab.shared}/seen; sleep 1")
    rig.becomes(name, "parked")
    rig.until(lambda: rig.instances()[name] == (host, "suspended"))
    rig.until(lambda: rig.state(high) == "COMPLETED")
    assert "qemu" not in (rig.lab.shared / "seen").read_text()
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.parametrize(
    ("policy", "form"),
    [(PAUSE_THEN_MOVE, "paused"), (SUSPEND_THEN_MOVE, "suspended")],
    ids=["paused", "suspended"],
)
def test_stopped_work_goes_on_at_the_other_host(rig: DaemonRig, policy: dict[str, object], form: str) -> None:
    """Both hosts are wanted; the first to become free gets the work, wherever it was before."""
    rig.restart(**policy, **ONE)
    low = rig.low()
    name, host = rig.where(low)
    blocker = rig.high(rig.other(host))
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.until(lambda: rig.instances()[name] == (host, form))
    rig.release(blocker)
    rig.counting(low)
    assert rig.where(low) == (name, rig.other(host))
    assert rig.state(high) == "RUNNING"
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_running_instance_moves_out_of_the_way(rig: DaemonRig) -> None:
    """With a free host and `migrate` first, the job is never suspended: it moves while it runs."""
    rig.restart(**MOVE_FIRST, **ONE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "ready")
    assert rig.instances()[name] == (rig.other(host), "running")
    rig.counting(low)
    rig.release(high)
    rig.finish(low)
    stopping = {"SuspendJob", "PauseInstance", "SuspendInstance"}
    assert stopping.isdisjoint(r.body["t"] for r in rig.journal("intent"))


def test_the_ladder_ends_in_the_queue(rig: DaemonRig) -> None:
    """After the last rung's time the job starts over on the other host; the old copy is silent."""
    short = {**PAUSE, "for_s": 1}
    rig.restart(ladder=[short, REQUEUE], limits={"max_instances": 2})
    low = rig.low()
    _, host = rig.where(low)
    high = rig.high(host)
    rig.until(lambda: rig.show(low)["Restarts"] == "1", what=f"the requeue of job {low}")
    rig.finish(low)
    assert rig.state(high) == "RUNNING"
    runs = [line.split()[3] for line in rig.tally(low)]
    assert runs == sorted(runs)
    rig.release(high)
