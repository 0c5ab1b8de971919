"""Checkpoints and throttling through the daemon, on real parts: the job counts on without a gap."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.jobs_rig import LIMIT_S

pytestmark = pytest.mark.real
ONE = {"limits": {"max_instances": 1}}
THROTTLE = {"rung": "throttle", "within_s": 60, "for_s": 600}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("ckpt") as rig:
        yield rig


def listed(rig: DaemonRig) -> list[dict[str, Any]]:
    """What `backfill checkpoint list` shows."""
    return list(json.loads(rig.with_policy("checkpoint", "list", "--json"))["checkpoints"])


def changes(rig: DaemonRig, kind: str) -> list[dict[str, Any]]:
    """What the journal tells of this kind, in order."""
    return [dict(r.body) for r in rig.journal("change") if r.body["t"] == kind]


def test_a_running_job_is_kept_and_counts_on(rig: DaemonRig) -> None:
    """Ordered, written, kept, back at work; then it is verified and removed."""
    rig.restart(ladder=[PAUSE, REQUEUE], **ONE)
    low = rig.low()
    name, host = rig.where(low)
    answer = json.loads(rig.backfill("checkpoint", "create", low, "--json"))
    assert answer["nodes"] == [name]
    rig.until(lambda: len(listed(rig)) == 1, what="the checkpoint")
    rig.becomes(name, "ready")
    rig.counting(low)
    assert rig.where(low) == (name, host)
    (kept,) = listed(rig)
    assert (kept["id"], kept["job"], kept["host"]) == (answer["id"], low, host)
    told = rig.with_policy("checkpoint", "verify", answer["id"], "--restore-on", host)
    assert f"complete and unchanged, and {host} can load it" in told
    (first,) = changes(rig, "CheckpointKept")
    assert first["id"] == answer["id"]
    again = json.loads(rig.backfill("checkpoint", "create", low, "--json"))
    rig.until(lambda: len(listed(rig)) == 2, what="the second checkpoint")
    rig.becomes(name, "ready")
    _, learned = changes(rig, "MemoryWritten")
    for body in changes(rig, "MemoryWritten"):
        assert body["host"] == host
        assert float(body["written_mb"]) > 10
        assert float(body["took_s"]) > 0
    # What the first has taught is what the second was expected to take.
    assert 0 < float(learned["expected_s"]) < LIMIT_S
    for one in (answer, again):
        rig.with_policy("checkpoint", "delete", one["id"])
    assert listed(rig) == []
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def test_a_job_goes_on_from_its_checkpoint(rig: DaemonRig) -> None:
    """Stopped, replaced, thawed behind the fence: the same job in Slurm, its program where it was.

    It counts in the guest's own memory; what went to shared places would be there twice. A word
    that stood there before is there again, one that came later is not, and no number is missing.
    """
    rig.restart(ladder=[PAUSE, REQUEUE], **ONE)
    count = "n=0; while :; do n=$((n+1)); echo $n >>/dev/shm/count; sleep 0.2; done"
    low = rig.submit("-p", "htc", "-o", "/dev/null", "--wrap", count)
    rig.until(lambda: rig.state(low) == "RUNNING", what="the job's start")
    name, host = rig.where(low)
    rig.becomes(name, "ready")
    rig.until(lambda: low in rig.nodes()[name]["jobs"], what="the daemon's sight of the job")
    rig.until(lambda: len(numbers(rig, host, name)) > 3, what="the first numbers")
    rig.out_of_guest(host, name, "echo before >/dev/shm/word")
    counted = len(numbers(rig, host, name))
    identity = json.loads(rig.backfill("checkpoint", "create", low, "--json"))["id"]
    rig.until(lambda: len(listed(rig)) == 1, what="the checkpoint")
    rig.becomes(name, "ready")
    rig.with_policy("checkpoint", "verify", identity, "--restore-on", host)
    rig.out_of_guest(host, name, "echo after >/dev/shm/word")
    rig.until(lambda: len(numbers(rig, host, name)) > counted + 20, what="later numbers")
    socket_path = str(rig.lab.daemon_socket)
    rig.with_policy("checkpoint", "restore", identity, "--socket", socket_path)
    seen = "CheckpointPutBack"
    rig.until(lambda: any(r.body["t"] == seen for r in rig.journal("change")), what=seen)
    rig.becomes(name, "ready")
    assert (rig.state(low), rig.where(low)) == ("RUNNING", (name, host))
    assert rig.out_of_guest(host, name, "cat /dev/shm/word") == "before\n"
    again = numbers(rig, host, name)
    assert len(again) >= counted
    rig.until(lambda: len(numbers(rig, host, name)) > len(again) + 3, what="the job to count on")
    rig.with_policy("checkpoint", "delete", identity)
    assert rig.show(low)["Restarts"] == "0"
    rig.cancel(low)


def numbers(rig: DaemonRig, host: str, name: str) -> list[int]:
    """What the job has counted, as it stands in the guest's memory: without gap or repetition."""
    found = [int(word) for word in rig.out_of_guest(host, name, "cat /dev/shm/count || :").split()]
    assert found == list(range(1, len(found) + 1))
    return found


def test_a_throttled_job_goes_on_beside_the_one_that_has_the_host(rig: DaemonRig) -> None:
    """It stays RUNNING in Slurm, is never silent for good, and has its CPUs back afterwards."""
    rig.restart(ladder=[THROTTLE, REQUEUE], **ONE)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.started(high)
    rig.becomes(name, "throttled")
    assert rig.state(low) == "RUNNING"
    rig.counting(low, more=1)
    rig.release(high)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
