"""A real time server and a real file server beside a lab's controller, and guests that use them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.extras import exported
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}, "readiness": {"files_within_s": 120}}
# Without KVM the kernel's NFS modules take seconds to load, and a busy machine takes its time.
LIMIT_S = 120.0
_WRITER = """#!/bin/bash
i=0
while :; do
    i=$((i + 1))
    echo $i >>/home/lines || echo bad $i >>/home/bad
    sleep 0.1
done
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("files", time=True, files=True) as rig:
        rig.start(**ONE)
        yield rig


@pytest.fixture
def rig(bed: DaemonRig) -> Iterator[DaemonRig]:
    bed.begin()
    yield bed
    bed.settle()


def ready(rig: DaemonRig) -> dict[str, Any]:
    """A ready node with a job that counts; returns what the daemon knows of it."""
    job = rig.low(start=False)
    rig.until(lambda: rig.tally(job), LIMIT_S, "the first word of a job on a new node")
    name, _ = rig.where(job)
    return {**rig.becomes(name, "ready"), "job": job}


def test_a_new_node_proves_all_of_it(rig: DaemonRig) -> None:
    """Clock against the time server, munge both ways, files, resources and address, all shown."""
    node = ready(rig)
    checks = {c["name"]: c for c in node["checks"]}
    assert set(checks) == {
        "clock", "munge:to the guest", "munge:from the guest", "files:/home", "files:/software",
        "resources", "address",
    }  # fmt: skip
    assert all(c["ok"] for c in checks.values())
    assert "the controller's time server" in checks["clock"]["sentence"]
    offset_s = float(re.match(r"[+-][\d.]+", checks["clock"]["sentence"])[0])  # type: ignore[index]
    assert abs(offset_s) < 0.5
    shown = rig.backfill("nodes", node["name"])
    assert "files:/home" in shown
    rig.finish(node["job"])


def test_no_line_is_lost_through_pause_and_a_restarted_file_server(rig: DaemonRig) -> None:
    """A job that appends to the file server stands still while that starts anew, and goes on."""
    node = ready(rig)
    rig.cancel(node["job"])
    script = rig.lab.shared / "writer.sh"
    script.write_text(_WRITER)
    home = exported(rig.lab.dir) / "home"
    job = rig.submit("-p", "htc", str(script))

    def lines() -> list[int]:
        path = home / "lines"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    rig.until(lambda: len(lines()) > 10, LIMIT_S, "lines on the file server")
    name, host = rig.where(job)
    high = rig.high(host)
    rig.becomes(name, "displaced")
    rig.lab.restart("ganesha")
    rig.release(high)
    rig.becomes(name, "ready", limit_s=LIMIT_S)
    count = len(lines())
    rig.until(lambda: len(lines()) > count + 10, LIMIT_S, "lines after the return")
    rig.cancel(job)
    rig.until(lambda: rig.state(job) == "CANCELLED")
    found = lines()
    assert found == list(range(1, len(found) + 1))
    assert not (home / "bad").exists()
