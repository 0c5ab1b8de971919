"""A real Salt master, time and file server beside a lab's controller, and guests that use them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.salt.driver import minion_id
from backfill.lab.extras import exported
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}}
# A guest under TCG needs its time, and so do two cores that it shares with everything else.
SALT_S = 150.0


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("salt", time=True, files=True, salt=True) as rig:
        rig.start(**ONE)
        yield rig


@pytest.fixture
def rig(bed: DaemonRig) -> Iterator[DaemonRig]:
    bed.begin()
    yield bed
    bed.settle()


def policy(rig: DaemonRig) -> str:
    return str(rig.lab.dir / "policy.yaml")


def ready(rig: DaemonRig) -> dict[str, Any]:
    """A ready node with a job that counts; returns what the daemon knows of it."""
    job = rig.low()
    name, _ = rig.where(job)
    return {**rig.becomes(name, "ready"), "job": job}


def command(rig: DaemonRig, *words: str) -> tuple[int, dict[str, Any]]:
    """Run `backfill WORDS --json` in the controller; status and document."""
    import sys

    argv = [sys.executable, "-m", "backfill", *words, "--config", policy(rig), "--json"]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = rig.lab.run("ctl", argv, env=env, timeout_s=SALT_S + 60)
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def converged(rig: DaemonRig, name: str) -> bool:
    """Whether the node's first run of states has succeeded."""
    text = rig.ctl("srun", "-p", "htc", "-w", name, "--overlap", "cat", "/run/backfill/salt")
    return text.startswith("ok")


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
