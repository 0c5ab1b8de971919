"""What vouches for a part whose checksums are not noted yet: the machine's page cache, and nothing else.

Keeping does not wait for the disk, as the instance stands still meanwhile. After a power cut a copy
may be short, or have holes where its content was; a sparse file has its length before its content.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from pathlib import Path

from backfill.drivers.libvirt.checkpoints.manifest import Manifest, Written
from backfill.ports.errors import BusyError, DamagedError, DriverError, unreadable

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """Return the id of this boot of the machine; empty if the kernel does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def machine() -> str:
    """Return this machine's name."""
    return socket.gethostname()


def note(folder: Path, names: Iterable[str]) -> Written:
    """Note what this machine has just written to `folder`."""
    return Written(machine(), boot_id(), {name: (folder / name).stat().st_size for name in names})


def doubt(folder: Path, manifest: Manifest) -> DriverError | None:
    """Return why this part is not to be sealed here: DamagedError, it never will be. None: it can be.

    One that an older backfill kept has no note, and is believed.
    """
    written = manifest.written
    if manifest.sealed or written is None:
        return None
    for name, size in written.sizes.items():
        problem = _changed(folder / name, size)
        if problem:
            return DamagedError(folder.parent.name, problem, "delete this checkpoint")
    if written.boot == boot_id() or not written.boot:
        return None
    if written.machine == machine():
        what = f"{machine()} was restarted before the checksums of {folder.name} were noted"
        problem = f"{what}: its files may not have reached the disk"
        return DamagedError(folder.parent.name, problem, "delete this checkpoint")
    return BusyError(
        folder.parent.name,
        f"{written.machine} has not noted its checksums yet",
        f"verify it on {written.machine}, which kept it",
    )


def _changed(path: Path, size: int) -> str:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:  # that says nothing about the checkpoint
        raise unreadable(path.parent.name, error, path) from error
    return "" if found == size else f"{path} is damaged: it has {found} bytes instead of {size}"
