"""A real time server and a real file server beside a lab's controller, and guests that use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from backfill.core.policies.readiness import Readiness
from backfill.lab.extras import exported
from tests.real.daemon_rig import MIGRATE, PAUSE, SUSPEND, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]

# Without KVM the kernel's NFS modules take seconds to load, and a busy machine takes its time.
LIMIT_S = 600.0
# Without another rung behind them: however slow a machine is, no other way is taken.
IN_MEMORY = {**PAUSE, "within_s": 150}
TO_DISK = {**SUSPEND, "within_s": 150}
ELSEWHERE = {**MIGRATE, "within_s": 150}
ONE: dict[str, Any] = {
    "limits": {"max_instances": 1},
    "readiness": {"files_within_s": LIMIT_S},
    "ladder": [IN_MEMORY],
}
_WRITER = """#!/bin/bash
i=0
while :; do
    i=$((i + 1))
    echo $i >>/home/lines-$SLURM_JOB_ID || echo bad $i >>/home/bad-$SLURM_JOB_ID
    sleep 0.1
done
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("files", time=True, files=True) as rig:
        rig.start(**ONE)
        yield rig


def test_a_new_node_proves_all_of_it(rig: DaemonRig) -> None:
    """Clock against the time server, munge both ways, files, resources, address and registration,
    all shown.
    """
    job = rig.low(start=False)
    rig.until(lambda: rig.tally(job), LIMIT_S, "the first word of a job on a new node")
    name, _ = rig.where(job)
    node = rig.becomes(name, "ready")
    checks = {c["name"]: c for c in node["checks"]}
    assert set(checks) == {
        "clock",
        "munge:to the guest",
        "munge:from the guest",
        "files:/home",
        "files:/software",
        "resources",
        "address",
        "slurmd",
    }
    assert all(c["ok"] for c in checks.values())
    assert "the controller's time server" in checks["clock"]["sentence"]
    offset_s = float(re.match(r"[+-][\d.]+", checks["clock"]["sentence"])[0])  # type: ignore[index]
    assert abs(offset_s) <= Readiness().clock_offset_s
    shown = rig.backfill("nodes", node["name"])
    assert "files:/home" in shown
    rig.finish(job)


class Writer:
    """A job that appends numbered lines to a file of its own on the file server."""

    def __init__(self, rig: DaemonRig) -> None:
        self._rig = rig
        script = rig.lab.shared / "writer.sh"
        script.write_text(_WRITER)
        self.job = rig.submit("-p", "htc", str(script))
        home = exported(rig.lab.dir) / "home"
        self._path, self._bad = home / f"lines-{self.job}", home / f"bad-{self.job}"
        self.goes_on("lines on the file server")

    def lines(self) -> list[int]:
        """The numbers that have arrived."""
        return [int(n) for n in self._path.read_text().split()] if self._path.exists() else []

    def goes_on(self, what: str) -> None:
        """Wait for more lines than there are; every one came once and in order."""
        count = len(self.lines())
        self._rig.until(lambda: len(self.lines()) > count + 10, LIMIT_S, what)
        self._check()

    def end(self) -> None:
        """End the job; what it wrote is whole."""
        self._rig.cancel(self.job)
        self._rig.until(lambda: self._rig.state(self.job) == "CANCELLED", LIMIT_S)
        self._check()
        assert not self._bad.exists()

    def _check(self) -> None:
        found = self.lines()
        assert found == list(range(1, len(found) + 1)), self._path.read_bytes()[:200]


def test_no_line_is_lost_through_pause_and_a_restarted_file_server(rig: DaemonRig) -> None:
    """A job that appends to the file server stands still while that starts over, and goes on."""
    writer = Writer(rig)
    name, host = rig.where(writer.job)
    high = rig.high(host, start=False)
    rig.becomes(name, "parked", limit_s=LIMIT_S)
    rig.started(high, LIMIT_S)
    rig.lab.restart("ganesha")
    rig.release(high)
    rig.becomes(name, "ready", limit_s=LIMIT_S)
    writer.goes_on("lines after the return")
    writer.end()


@pytest.mark.soak
def test_no_line_is_lost_through_disk_and_another_host(rig: DaemonRig) -> None:
    """The same job goes to disk and comes back, and then moves while it writes."""
    rig.restart(**{**ONE, "ladder": [TO_DISK]})
    writer = Writer(rig)
    name, host = rig.where(writer.job)
    high = rig.high(host, start=False)
    rig.until(lambda: rig.instances()[name] == (host, "suspended"), LIMIT_S, "a suspended guest")
    rig.started(high, LIMIT_S)
    rig.release(high)
    rig.becomes(name, "ready", limit_s=LIMIT_S)
    writer.goes_on("lines after the return from disk")
    rig.restart(**{**ONE, "ladder": [ELSEWHERE]})
    high = rig.high(host, start=False)
    there = (rig.other(host), "running")
    rig.until(lambda: rig.instances()[name] == there, LIMIT_S, "the guest on the other host")
    rig.becomes(name, "ready", limit_s=LIMIT_S)
    writer.goes_on("lines from the other host")
    rig.started(high, LIMIT_S)
    rig.release(high)
    writer.end()


def waits(rig: DaemonRig) -> str:
    """What people see of a node that boots."""
    return "".join(rig.backfill("nodes", name) for name in rig.nodes())


@pytest.mark.soak
def test_a_new_node_waits_for_the_file_server(rig: DaemonRig) -> None:
    """While there is none it stays drained and says what to do; when that is done it is let go
    without another word. A guest that has found none tries again after a minute or two.
    """
    patient = {**ONE, "readiness": {"files_within_s": 3 * LIMIT_S}}
    rig.restart(**{**patient, "scale": {"idle_s": 0}})
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the end of the former node")
    rig.restart(**patient)
    rig.lab.stop("ganesha")
    job = rig.low(start=False)
    rig.until(lambda: "see that the file server runs" in waits(rig), LIMIT_S, "a proof that fails")
    assert re.search(r"files:/home +NO .* not mounted", waits(rig))
    (name,) = rig.nodes()
    assert "DRAIN" in rig.node_states()[name]
    rig.lab.start("ganesha")
    rig.until(lambda: rig.tally(job), 3 * LIMIT_S, "the first word of a job on a new node")
    checks = {check["name"]: check["ok"] for check in rig.becomes(name, "ready")["checks"]}
    assert checks["files:/home"]
    assert set(checks.values()) == {True}
    rig.finish(job)
