"""Parents of instant clones as folders: memory, state and disk of a guest that was frozen once.

The emulator of a parent ends when it is frozen, so nobody can thaw it: a parent that ran on would
change the memory of all its clones. The page cache keeps its memory warm. Clones need the folder
as long as they live: a parent that one of them names stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

from backfill.core.model.fleet import CloneParent, Flavour
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from backfill.drivers.libvirt.store import Store, folders_in, read_text
from backfill.ports.errors import unreadable

_FORMAT = 3  # of what is below; another one makes all parents anew


@dataclass(frozen=True, slots=True)
class Parent:
    """The files of one frozen parent."""

    home: Path

    @property
    def memory(self) -> Path:
        return self.home / "ram"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def disk(self) -> str:
        return str(self.home / "disk.qcow2")

    def image(self, image: ImageFiles) -> ImageFiles:
        """Return the image as its clones see it: the parent's disk lies below theirs."""
        return replace(image, disk=self.disk, disk_format="qcow2")

    def fingerprint(self) -> dict[str, list[int]]:
        """Size and time of change of everything that must never change again."""
        seen = {}
        for path in (self.memory, self.state, Path(self.disk)):
            found = path.stat()
            seen[path.name] = [found.st_size, found.st_mtime_ns]
        return seen

    def intact(self) -> bool:
        """Return True if it was found good once and nobody has written to it since.

        UnreadableError if the files cannot be read.
        """
        good = read_text(self.home.name, self.home / "good")
        try:
            return good is not None and bool(json.loads(good) == self.fingerprint())
        except (FileNotFoundError, ValueError):
            return False
        except OSError as error:
            raise unreadable(self.home.name, error) from error


def key_of(home: Path) -> str:
    """Return the kind of parent from the name of its folder."""
    return home.name.split("-")[1]


def flavour_of(home: Path) -> Flavour | None:
    """Return the shape that it was made for; None if the file is half written."""
    text = read_text(home.name, home / "flavour.json")
    try:
        return None if text is None else Flavour(**json.loads(text))
    except (ValueError, TypeError):
        return None


def newest(store: Store, key: str) -> Parent | None:
    """Return the youngest intact parent of this kind."""
    start = f"parent-{key}-"
    homes = [home for home in reversed(folders_in(store.root)) if home.name.startswith(start)]
    return next((p for p in map(Parent, homes) if p.intact()), None)


def parents_on(pool: Pool, host: str) -> Store:
    """Return the folders of parents on `host`; a dot keeps them apart from those of instances."""
    return Store(str(pool.store_on(host).root / ".parents"), host)


def kind_of(shape: Flavour, image: ImageFiles, hardware: Hardware) -> str:
    """Return a hash of everything that must be equal for two instances to share a parent."""
    files = []
    for path in (image.kernel, image.initrd, image.disk):
        with contextlib.suppress(OSError):  # a missing file has its own error, later
            seen = os.stat(path)
            files.append((path, seen.st_size, seen.st_mtime_ns))
    flavour = (shape.cpus, shape.memory_mb, shape.disk_gb)
    # A weight that the host cannot give changes nothing in the guest.
    parts = (_FORMAT, files, image.sha256, image.cmdline, flavour, replace(hardware, cpu_shares=None))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def seen(pool: Pool, host: str, active: frozenset[str]) -> tuple[CloneParent, ...]:
    """List the parents on `host`, finished or starting; `active`: names of domains that run there."""
    hardware = pool.config.hardware
    found = set()
    for home in parent_homes(pool, host):
        key, flavour = key_of(home), flavour_of(home)
        running = home.name in active or f"canary-{key}" in active
        made = Parent(home).intact()
        if flavour is None or not (made or running):
            continue
        for name, image in pool.config.images.items():
            if kind_of(flavour, image, hardware) == key:
                shape = (flavour.cpus, flavour.memory_mb, flavour.disk_gb)
                found.add(CloneParent(name, *shape, made))
    return tuple(sorted(found, key=repr))


def parent_homes(pool: Pool, host: str) -> list[Path]:
    """List the folders of all parents on `host`, half-made ones included."""
    homes = folders_in(parents_on(pool, host).root)
    return [home for home in homes if home.name.startswith("parent-")]
