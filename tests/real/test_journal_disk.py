"""The disk of the journal is full, or hangs: evictions go on, it is said, and so it is when it is over."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.real.daemon_rig import PAUSE, DaemonRig, daemon_lab

pytestmark = pytest.mark.real

_LONGEST_S = 300.0
AGAIN = "the journal can be written again"


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("journal-disk", hosts=1) as rig, own_disk(rig):
        yield rig
        rig.clear()


@contextmanager
def own_disk(rig: DaemonRig) -> Iterator[None]:
    """A small disk for the daemon's state; here and in the controller it is the same one."""
    state, image = rig.lab.dir / "daemon", rig.lab.dir / "disk.img"
    state.mkdir(exist_ok=True)
    with image.open("wb") as file:
        file.truncate(32 << 20)
    call("mkfs.ext4", "-q", "-m", "0", str(image))
    device = call("losetup", "--find", "--show", str(image))
    try:
        call("mount", device, str(state))
        rig.ctl("mount", device, str(state))
    finally:
        call("losetup", "--detach", device)  # once nobody has it mounted
    try:
        yield
    finally:
        rig.ctl("umount", str(state), check=False)
        call("umount", str(state))


def call(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def full(state: Path) -> Iterator[None]:
    """No block is left on it."""
    ballast = state / "ballast"
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4096"], check=False, capture_output=True)
    assert ballast.stat().st_size > 1 << 20
    try:
        yield
    finally:
        ballast.unlink()


@contextmanager
def hanging(state: Path) -> Iterator[None]:
    """Whoever writes to it waits, until it goes on."""
    thaw = ["fsfreeze", "--unfreeze", str(state)]
    # A test that fails reads the journal, which would wait for ever.
    in_the_end = threading.Timer(_LONGEST_S, lambda: subprocess.run(thaw, check=False, capture_output=True))
    call("fsfreeze", "--freeze", str(state))
    in_the_end.start()
    try:
        yield
    finally:
        in_the_end.cancel()
        call(*thaw)


@pytest.mark.parametrize(
    ("trouble", "why"), [(full, "the disk is full"), (hanging, "its disk did not answer within")]
)
def test_an_eviction_does_not_wait_for_the_journal(
    rig: DaemonRig, trouble: Callable[[Path], AbstractContextManager[None]], why: str
) -> None:
    """The instance stops and the job starts; all else waits, is said, and is made up for later."""
    rig.restart(ladder=[PAUSE])  # so that there is nothing to write into but new blocks
    low = rig.low()
    rig.counting(low)
    node, host = rig.where(low)
    with trouble(rig.lab.dir / "daemon"):
        high = rig.high(host)
        assert rig.instances()[node] == (host, "paused")
        rig.until(lambda: why in rig.log.read_text(), what="the log's word of it")
        rig.until(lambda: why in rig.backfill("plan"), what="the plan's word of it")
        assert rig.state(low) == "RUNNING"  # nothing but the stop was begun
        assert AGAIN not in rig.log.read_text()[rig._log_from :]
    rig.until(lambda: AGAIN in rig.log.read_text()[rig._log_from :], what="the journal")
    rig.until(lambda: rig.state(low) == "SUSPENDED", what="what was put off")
    rig.release(high)
    rig.counting(low)
    assert rig.show(low)["Restarts"] == "0"
    told = [str(record.body["node"]) for record in rig.journal("phase") if record.subject == node]
    # Also what could not be written at its time.
    assert [any(f"'phase': '{phase}'" in one for one in told) for phase in ("evicting", "parked")] == [
        True
    ] * 2
