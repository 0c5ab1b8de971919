"""No job of an ordinary user finds a secret of the cluster in a guest of a host of ours."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.real.attacker import Watcher, found_in, loot
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("secrets", hosts=1) as rig:
        yield rig


def test_what_is_looked_for_would_be_found() -> None:
    """In each writing, wherever it begins and lines end."""
    key = bytes(range(256)) * 4
    assert found_in(b"x" + key, key)
    assert found_in(b"x" + key.hex().encode(), key)
    for before in (b"", b"a", b"ab"):
        assert found_in(base64.encodebytes(before + key), key)
    assert not found_in(bytes(reversed(key)), key)


def test_a_job_finds_no_key_in_its_guest(rig: DaemonRig) -> None:
    """Seed disk, files, devices, kernel log, command lines and environments of all processes."""
    rig.restart(limits={"max_instances": 1})
    low = rig.low(start=False)
    rig.counting(low)
    node, host = rig.where(low)
    planted = bytes(range(48))  # what somebody has left behind, to see that it would be found
    rig.out_of_guest(host, node, f"echo {planted.hex()} >/var/lib/left && chmod 644 /var/lib/left")
    rig.finish(low)
    found = loot(rig, node)
    key = rig.lab.munge_key.read_bytes()
    assert b"NODE_NAME=" in found  # it did read what is for everybody
    assert b"cat: /dev/vdb: Permission denied" in found  # and has tried the seed
    assert b"cat: /etc/munge/munge.key: Permission denied" in found
    assert found_in(found, planted)
    assert found_in(found, key) == []


def test_a_job_sees_no_credential_go_by(rig: DaemonRig) -> None:
    """Neither while its node is stopped nor when it returns and proves itself; a planted one is seen."""
    rig.restart(limits={"max_instances": 1})
    low = rig.low()
    node, host = rig.where(low)
    watcher = Watcher(rig, host, node)
    planted = "bash -c 'exec -a MUNGE:planted: tail -f /dev/null'"
    rig.out_of_guest(host, node, f"{planted} >/dev/null 2>&1 & echo $! >/run/planted")
    watcher.looks()
    rig.out_of_guest(host, node, "kill $(cat /run/planted)")
    high = rig.high(host)
    rig.becomes(node, "parked")
    rig.release(high)
    rig.becomes(node, "ready")
    rig.counting(low)
    watcher.looks()
    assert set(watcher.end()) == {"MUNGE:planted:"}
    rig.finish(low)
