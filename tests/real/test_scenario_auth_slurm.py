"""A cluster without munge: Slurm's own keys in guests, changed while one of them stands still."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator

import pytest

from backfill.lab.layout import write_slurm_keys
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

_NEW = secrets.token_bytes(64)


@pytest.fixture(scope="module", params=["24.11"])
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    with daemon_lab("auth", slurm_version=request.param, auth="slurm") as rig:
        yield rig


def _keys_are(rig: DaemonRig, keys: dict[str, bytes], default: str) -> str:
    """What an admin does on the machines that he can reach, and slurmctld's word; returns the file."""
    write_slurm_keys(rig.lab.slurm_keys, keys, default)
    rig.ctl("scontrol", "reconfigure")
    rig.until(lambda: "UP" in rig.ctl("scontrol", "ping", check=False), what="slurmctld with its keys")
    return rig.lab.slurm_keys.read_text()


def _in_guest(rig: DaemonRig, host: str, node: str) -> str:
    return rig.out_of_guest(host, node, "cat /etc/slurm/slurm.jwks; ! pidof munged >/dev/null")


def test_keys_change_while_a_guest_stands_still_and_while_it_runs(rig: DaemonRig) -> None:
    """It has them before it is asked anything; its job goes on and ends, and the next one is believed."""
    (first,) = json.loads(rig.lab.slurm_keys.read_text())["keys"]
    old = base64.b64decode(first["k"])
    rig.restart()
    low = rig.low()
    node, host = rig.where(low)
    assert _in_guest(rig, host, node) == rig.lab.slurm_keys.read_text()
    high = rig.high(host)
    rig.becomes(node, "parked")
    _keys_are(rig, {first["kid"]: old, "new": _NEW}, first["kid"])
    both = _keys_are(rig, {first["kid"]: old, "new": _NEW}, "new")
    rig.release(high)
    rig.counting(low)
    rig.becomes(node, "ready")
    assert _in_guest(rig, host, node) == both
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
    # Nothing of the old key is needed any more. This guest runs, and is told by itself.
    alone = _keys_are(rig, {"new": _NEW}, "new")
    rig.until(lambda: _in_guest(rig, host, node) == alone, what="the new key alone in the guest")
    again = rig.low("-w", node)
    rig.finish(again)
