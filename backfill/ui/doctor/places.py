"""Files and directories as the user meets them who looks; what is written there goes again at once."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from backfill.ui.doctor.facts import PROTECTED, PROTECTIONS, PlaceFacts

_START = 0x210  # as far as a kernel's mark
_MB = 1024 * 1024
_OTHERS_ENTER = 0o001
_FSTAB = Path("/etc/fstab")
_OPEN = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - where everybody may write


def read_file(path: str) -> PlaceFacts:
    """Read the start of a file."""
    try:
        with open(path, "rb") as file:
            return PlaceFacts(path, size=os.fstat(file.fileno()).st_size, start=file.read(_START))
    except OSError as error:
        return PlaceFacts(path, error.strerror or str(error), not isinstance(error, FileNotFoundError))


@contextlib.contextmanager
def write_into(path: str, fstab: Path = _FSTAB) -> Iterator[tuple[PlaceFacts, str]]:
    """Put a file into a directory; yield what came of it, and the file's name while it is there."""
    unmounted = _unmounted(Path(path), fstab)
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix="backfill-doctor-") as file:
            seen = os.fstat(file.fileno())
            place = PlaceFacts(
                path,
                free_mb=_free_mb(Path(path)),
                ahead_s=seen.st_mtime - time.time(),
                closed_at=_closed_at(Path(path)),
                mount=_mount(Path(path)),
                unmounted=unmounted,
            )
            yield place, Path(file.name).name
    except OSError as error:
        problem, there = error.strerror or str(error), not isinstance(error, FileNotFoundError)
        yield PlaceFacts(path, problem, there, unmounted=unmounted), ""


def may_write(path: str) -> PlaceFacts:
    """Look whether a directory can be written, or made where it is not there yet."""
    place = Path(path)
    there = place.exists()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        return PlaceFacts(path, f"{place} is no directory", there)
    problem = "" if os.access(place, os.W_OK | os.X_OK) else f"it may not write {place}"
    return PlaceFacts(path, problem, there, free_mb=_free_mb(place))


def exposed(*paths: str) -> str:
    """Return the first of these on this machine that is where everybody may write; empty: none is."""
    return next((path for path in paths if is_open(path) or any(map(_lets_all_write, ways(path)))), "")


def is_open(path: str) -> bool:
    """Return True if this is where everybody may write on any machine."""
    return any(Path(path).is_relative_to(place) for place in _OPEN)


def ways(path: str) -> tuple[Path, ...]:
    """Return the path and what it lies in."""
    return (Path(path), *Path(path).parents) if path.startswith("/") else ()


def ways_of_host(directory: str) -> tuple[str, ...]:
    """Return those of a host's ways to a directory whose rights libvirtd is asked for.

    It opens all that lies in each. In / that may be a file server that is gone, for which it would wait.
    """
    return tuple(str(way) for way in ways(directory) if way != Path("/"))


def _lets_all_write(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISDIR(mode) and bool(mode & stat.S_IWOTH)


def protections(folder: Path = Path(PROTECTIONS)) -> dict[str, str]:
    """Read this machine's settings about files of others; a kernel may lack one."""
    found = {}
    for name in PROTECTED:
        with contextlib.suppress(OSError):
            found[name] = (folder / name).read_text()
    return found


def _free_mb(path: Path) -> float:
    room = os.statvfs(path)
    return room.f_bavail * room.f_frsize / _MB


def _mount(path: Path) -> str:
    """Return the mount point that a directory lies in; empty where that is the root."""
    return next((str(place) for place in (path, *path.parents[:-1]) if place.is_mount()), "")


def _unmounted(path: Path, fstab: Path) -> str:
    """Return the deepest mount point of fstab on the way to a directory, if nothing is mounted there."""
    try:
        lines = [line.split() for line in fstab.read_text(errors="surrogateescape").splitlines()]
    except OSError:
        return ""
    points = {Path(unescaped(words[1])) for words in lines if len(words) > 3 and not words[0].startswith("#")}
    place = next((place for place in (path, *path.parents[:-1]) if place in points), None)
    return "" if place is None or place.is_mount() else str(place)


def unescaped(word: str) -> str:
    """Read a word of fstab or /proc/mounts, where blanks and the like are octal numbers (fstab(5))."""
    return os.fsdecode(
        re.sub(rb"\\([0-3][0-7]{2})", lambda found: bytes([int(found[1], 8)]), os.fsencode(word))
    )


def _closed_at(path: Path) -> tuple[str, int, int] | None:
    for place in (*reversed(path.parents), path):
        seen = place.stat()
        if not seen.st_mode & _OTHERS_ENTER:
            return str(place), seen.st_uid, seen.st_gid
    return None
