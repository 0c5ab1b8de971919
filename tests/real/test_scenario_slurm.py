"""What Slurm and its users do while an instance stands still or is being pushed aside."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from backfill.ports.storage import Record
from tests.real.daemon_rig import MIGRATE, PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.releases import RELEASES

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}}
BY_PAUSE = {"ladder": [PAUSE, REQUEUE], **ONE}
TWO: dict[str, Any] = {"ladder": [PAUSE, REQUEUE], "limits": {"max_instances": 2}}
SOON = {"ladder": [PAUSE, MIGRATE, REQUEUE], "comeback": {"move_after_s": 0}, **ONE}


@pytest.fixture(scope="module", params=RELEASES)
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("slurm", slurm_version=request.param) as rig:
        yield rig


def crash(rig: DaemonRig) -> None:
    # What slurmctld has not saved yet (every five seconds) is lost by a crash, whoever runs it.
    now_s = time.time()
    saved = rig.lab.dir / "machines/ctl/spool/slurmctld/job_state"
    rig.until(lambda: saved.stat().st_mtime > now_s, what="slurmctld saving its state")
    rig.lab.kill("slurmctld", signal.SIGKILL)
    rig.lab.start("slurmctld")


def restart(rig: DaemonRig) -> None:
    rig.lab.restart("slurmctld")


@pytest.mark.parametrize("end", [restart, crash])
def test_slurmctld_restarts_during_a_pause(rig: DaemonRig, end: Callable[[DaemonRig], None]) -> None:
    """slurmctld finds the paused node and its job again, and both go on."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    end(rig)
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.gate
def test_a_hung_slurmctld_stops_only_what_is_asked_of_it(rig: DaemonRig) -> None:
    """Hosts are read and questions answered meanwhile; afterwards all goes on by itself."""
    rig.restart(slurm={"timeout_s": 3}, **BY_PAUSE)
    low = rig.low()

    def source(name: str) -> dict[str, Any]:
        found: dict[str, Any] = rig.ask("status")["sources"][name]
        return found

    rig.lab.kill("slurmctld", signal.SIGSTOP)
    try:
        rig.until(lambda: "no answer" in source("slurm")["problem"], what="the silence noticed")
        before = {host: source(host)["seen_s"] for host in rig.lab.hosts}
        rig.until(lambda: all(source(host)["seen_s"] > s for host, s in before.items()))
    finally:
        rig.lab.kill("slurmctld", signal.SIGCONT)
    rig.until(lambda: not source("slurm")["problem"], what="Slurm read again")
    rig.counting(low)
    rig.finish(low)


@pytest.mark.parametrize("watched", [True, False], ids=["daemon up", "daemon down"])
def test_a_job_requeued_behind_our_back_is_never_thawed(rig: DaemonRig, watched: bool) -> None:
    """The stale copy says no word any more; the job runs anew, once, from its new start."""
    rig.restart(**TWO)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    if not watched:
        rig.kill()
    still_s = time.time()
    rig.ctl("scontrol", "requeue", low)
    # Its node stands still, so only a daemon can let the old run end in Slurm.
    rig.until(lambda: rig.state(low) in ("PENDING", "COMPLETING"))
    rig.ctl("scontrol", "update", f"JobId={low}", "StartTime=now", check=False)
    rig.ctl("scontrol", "release", low, check=False)
    if not watched:
        rig.release(high)
        rig.start(**TWO)
    rig.finish(low)
    if watched:
        rig.release(high)
    said = [line.split() for line in rig.tally(low)]
    assert {words[3] for words in said if float(words[0]) > still_s} == {"1"}
    thawed = [r.body for r in rig.journal("intent") if r.body["t"] == "ThawInstance"]
    assert thawed == []


@pytest.mark.gate
def test_a_suspend_that_arrives_after_the_thaw_does_no_harm(rig: DaemonRig) -> None:
    """It was sent to a paused guest and is delivered late: the job goes on all the same."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    over_s = rig.becomes(name, "parked")["since_s"] + 7.0
    rig.until(lambda: time.time() > over_s)
    rig.release(high)
    rig.becomes(name, "ready")
    free_s = time.time()
    # Words before the late signal prove nothing: the job must still speak some time later.
    rig.until(lambda: time.time() > free_s + 3)
    rig.counting(low)
    rig.finish(low)


@pytest.mark.gate
def test_a_job_that_a_late_signal_stopped_is_set_going(rig: DaemonRig) -> None:
    """Slurm shows it as running and its processes stand still: that is seen and mended."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    rig.release(rig.high(host))
    rig.becomes(name, "ready")
    rig.counting(low, more=10)
    rig.in_guest(host, name, "/usr/bin/pkill", "-STOP", "-f", "slurm_script")
    kicked = rig.until(lambda: kicks(rig), what="the daemon noticing the stopped job")
    rig.counting(low)
    rig.finish(low)
    assert {r.body["job_id"] for r in kicked} == {low}


def kicks(rig: DaemonRig) -> list[Record]:
    return [r for r in rig.journal("intent") if r.body["t"] == "KickJob"]


def test_two_jobs_want_the_same_host(rig: DaemonRig) -> None:
    """The work comes back after the last of them, not after the first."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    first, second = (rig.high(host, start=False) for _ in range(2))
    began_s = min(rig.started(first), rig.started(second))
    rig.release(first)
    for _ in range(2):  # the first reading may have begun before, and be decided upon after
        slurm_is_read(rig)
    assert rig.phase(name) == "parked"
    assert [r for r in rig.journal("intent") if r.body["t"] == "ThawInstance"] == []
    rig.assert_silent(low, began_s, rig.release(second))
    rig.finish(low)


def slurm_is_read(rig: DaemonRig) -> None:
    """Wait until the daemon has read all of Slurm once more."""

    def read_s() -> float:
        return float(rig.ask("status")["sources"]["slurm"]["seen_s"])

    before_s = read_s()
    rig.until(lambda: read_s() > before_s, what="that Slurm is read again")


@pytest.mark.gate
def test_a_second_job_takes_the_host_that_the_work_moves_to(rig: DaemonRig) -> None:
    """Wherever the instance is when that happens, it stands still until one host is free."""
    rig.restart(**SOON)
    low = rig.low()
    name, host = rig.where(low)
    first = rig.high(host)
    rig.becomes(name, "moving", "returning", "ready")
    second = rig.high(rig.other(host))
    rig.becomes(name, "parked")
    began_s = rig.started(second)
    rig.assert_silent(low, began_s, rig.release(first))
    rig.counting(low)
    assert rig.where(low) == (name, host)
    rig.finish(low)
    rig.release(second)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.gate
def test_the_high_job_is_cancelled_while_its_hook_waits(rig: DaemonRig) -> None:
    """The host turns out to be free before it was given up: the low job goes on there."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    rig.lab.kill(f"libvirtd@{host}", signal.SIGSTOP)
    high = rig.high(host, start=False)
    rig.becomes(name, "evicting")
    rig.cancel(high)
    rig.until(lambda: rig.state(high) == "CANCELLED")
    rig.lab.kill(f"libvirtd@{host}", signal.SIGCONT)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.where(low) == (name, host)
    assert not rig.has_started(high)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.gate
def test_the_parked_job_is_cancelled(rig: DaemonRig) -> None:
    """Nobody needs its instance any more: it goes, and the high-priority job notices nothing."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.cancel(low)
    rig.until(lambda: name not in rig.nodes(), what=f"the removal of {name}")
    assert rig.state(low) == "CANCELLED"
    assert name not in rig.node_states()
    assert rig.state(high) == "RUNNING"
    rig.release(high)


def test_a_foreign_drain_is_never_lifted(rig: DaemonRig) -> None:
    """Set before the eviction or in the middle of it: the job returns, the drain stays."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, "parked")
    drain(rig, name, "smells burnt")
    rig.release(high)
    rig.becomes(name, "ready")
    rig.counting(low)
    assert reason(rig, name) == "smells burnt"
    again = rig.high(host)
    rig.becomes(name, "parked")
    rig.release(again)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert reason(rig, name) == "smells burnt"
    assert "DRAIN" in rig.node_states()[name]
    rig.ctl("scontrol", "update", f"NodeName={name}", "State=UNDRAIN")


@pytest.mark.soak
def test_others_move_and_delete_our_node(rig: DaemonRig) -> None:
    """Its address is put right; gone, it is made anew when it is needed; what is not ours stays."""
    rig.restart(**BY_PAUSE)
    low = rig.low()
    name, _ = rig.where(low)
    rig.ctl("scontrol", "update", f"NodeName={name}", "NodeAddr=10.77.9.9")
    rig.until(lambda: "10.77.9.9" not in rig.ctl("scontrol", "-o", "show", "node", name))
    rig.counting(low)
    rig.finish(low)
    rig.ctl("scontrol", "create", "NodeName=renamed", "CPUs=1", "State=FUTURE")
    rig.until(lambda: deleted(rig, name), what=f"the end of {name} by an admin's hand")
    again = rig.low()
    assert list(rig.instances()) == [rig.where(again)[0]]
    rig.finish(again)
    assert deleted(rig, "renamed")


def deleted(rig: DaemonRig, node: str) -> bool:
    """Delete it as an admin would; False while Slurm calls it busy, or does not know it."""
    shown = rig.ctl("scontrol", "-F", "-o", "show", "node", node, check=False)
    rig.ctl("scontrol", "delete", f"NodeName={node}", check=False)
    left = rig.ctl("scontrol", "-F", "-o", "show", "node", node, check=False)
    return f"NodeName={node} " in shown and f"NodeName={node} " not in left


@pytest.mark.gate
def test_the_dead_are_set_down_and_the_paused_are_not(rig: DaemonRig) -> None:
    """With SlurmdTimeout=0 only the daemon does it; the node comes back when its slurmd does."""
    rig.restart(**BY_PAUSE, liveness={"down_after_s": 3})
    low = rig.low()
    name, host = rig.where(low)
    other = rig.other(host)
    high = rig.high(host)
    rig.becomes(name, "parked")
    gone = rig.high(other)
    rig.started(gone)
    rig.lab.kill(f"slurmd@{other}", signal.SIGKILL)
    rig.cancel(gone)  # slurmctld has to speak with the node, and need not wait for its next ping
    rig.until(lambda: "DOWN" in rig.node_states()[other], what=f"{other} DOWN")
    assert reason(rig, other) == "backfill: it has not answered Slurm for 3 s"
    assert "DOWN" not in rig.node_states()[name]
    assert rig.state(low) == "SUSPENDED"
    rig.lab.restart(f"slurmd@{other}")
    rig.until(lambda: rig.node_states()[other] == "IDLE", what=f"the return of {other}")
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def drain(rig: DaemonRig, node: str, why: str) -> None:
    rig.ctl("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={why}")


def reason(rig: DaemonRig, node: str) -> str:
    return rig.ctl("sinfo", "-h", "-N", "-n", node, "-o", "%E").splitlines()[0]
