"""Files that a crash leaves whole: the old one or the new one, never half of either."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

_KEPT = 50


def read_or_empty(path: Path) -> str:
    """Read the file's text; empty where there is none.

    Whatever others have put there is read and would be written back byte by byte: line ends are not
    changed, and what is no UTF-8 is carried as surrogates.
    """
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return ""


def replace_file(path: Path, text: str | bytes, like: Path | None = None) -> None:
    """Put `text` in the place of `path` in one step that survives a power cut.

    Owner and mode stay; a new file has those of `like`. The temporary file of a run that was
    killed is overwritten by the next one.
    """
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    fresh = path.with_name(f".{path.name}.backfill-new")
    fresh.unlink(missing_ok=True)
    pattern = path if path.exists() else like
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "wb", closefd=False) as stream:
            stream.write(data)
        if pattern is not None:
            seen = pattern.stat()
            os.fchown(handle, seen.st_uid, seen.st_gid)
            os.fchmod(handle, seen.st_mode & 0o7777)
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(fresh, path)
    sync_directory(path.parent)


def behind(path: Path) -> Path:
    """Return where a link leads that root or this user has made; any other one is not followed."""
    if path.is_symlink() and path.lstat().st_uid in (0, os.geteuid()):
        return path.resolve()
    return path


def make_directory(path: Path) -> None:
    """Make it and what is missing above it, open to all whatever our umask: others have to be let in."""
    for place in reversed([p for p in (path, *path.parents) if not p.exists()]):
        place.mkdir(exist_ok=True)
        place.chmod(0o755)


def give_to_owner_of(directory: Path, path: Path) -> None:
    """Give what root has made in the directory to whom that belongs: the daemon may be another user."""
    if os.geteuid() == 0:
        seen = directory.stat()
        # Without CAP_CHOWN, or where the file system knows no owners, it is as good without.
        with contextlib.suppress(PermissionError):
            os.chown(path, seen.st_uid, seen.st_gid, follow_symlinks=False)


def make_own_directory(path: Path) -> None:
    """Make it, with what is missing above it, for whom the directory belongs that is there already."""
    for place in reversed([p for p in (path, *path.parents) if not p.exists()]):
        place.mkdir(exist_ok=True)
        give_to_owner_of(place.parent, place)


def remove_file(path: Path) -> None:
    """Remove it for good; gone already is fine."""
    path.unlink(missing_ok=True)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in this directory survive a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Backups:
    """Dated copies of one file, the newest last."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    def keep(self, text: str, now_s: float) -> Path:
        """Store the text; the oldest copies beyond fifty go."""
        make_own_directory(self._directory)
        stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(now_s))
        number = 0
        while (path := self._directory / f"{self._name}.{stamp}.{number:03d}").exists():
            number += 1
        replace_file(path, text)
        give_to_owner_of(self._directory, path)
        for old in self.all()[:-_KEPT]:
            old.unlink(missing_ok=True)
        return path

    def all(self) -> list[Path]:
        """Every copy, oldest first."""
        return sorted(self._directory.glob(f"{self._name}.*"))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock against every other process and thread that wants the same."""
    make_own_directory(path.parent)
    with path.open("a+") as lock:
        give_to_owner_of(path.parent, path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
