"""libvirtd struck in the moment of a save when QEMU has sent all and libvirtd has not heard.

It is stopped while memory is being written, which QEMU goes on with alone, and killed when QEMU has
closed its end: from then on QEMU is in the state `postmigrate`, and libvirt shows no trace of it.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

from backfill.lab.cluster import Lab
from backfill.lab.waiting import wait_until

_BEGUN_BYTES = 200_000  # more than the head that libvirtd writes before it asks QEMU
_LIMIT_S = 600.0


def strike_when_all_is_sent(lab: Lab, host: str, home: Path) -> None:
    """Kill libvirtd on `host` then. A save of the instance with this folder is about to begin."""
    pid, image = emulator_of(home), home / "memory.save"
    before = _pipes(pid)
    assert wait_until(lambda: _size(image) > _BEGUN_BYTES, _LIMIT_S), "no save began"
    lab.kill(f"libvirtd@{host}", signal.SIGSTOP)
    assert wait_until(lambda: _pipes(pid) <= before, _LIMIT_S), "QEMU did not send all"
    lab.kill(f"libvirtd@{host}", signal.SIGKILL)


def emulator_of(home: Path) -> int:
    """The process that has the disk in this folder, as seen from outside the lab."""
    disk = str(home / "disk.qcow2").encode()
    deadline_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < deadline_s:
        for words in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = words.read_bytes()
            except OSError:  # it has just ended
                continue
            if disk in line and b"guest=" in line:
                return int(words.parent.name)
    raise AssertionError(f"nothing runs with {disk!r}")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _pipes(pid: int) -> int:
    """How many pipes the process has open: its memory goes through one."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(link.readlink()).startswith("pipe:")
        except OSError:  # closed in this moment
            continue
    return count
