"""Compression of saved memory with zstd, at the level that a sample of the very file says pays."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from backfill.drivers.libvirt import programs
from backfill.ports.errors import BadOutputError, DriverError, NoCapacityError

_LEVELS = (1, 3)
_SAMPLE_BYTES = 16 << 20
_CHUNK = 1 << 20
_MB = 1_000_000
# Saving less than this share is not worth the CPU time of packing and unpacking.
_WORTH = 0.15
# Slower than this it would still be at work when the next checkpoint comes.
_SLOWEST_MB_S = 20.0
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of one level on the sample. `share`: packed size by plain size."""

    level: int
    share: float
    mb_s: float


@dataclass(frozen=True, slots=True)
class PackingChoice:
    """The chosen way to keep a file: `level` 0 is as it is. `why` for people."""

    level: int
    why: str

    @property
    def method(self) -> str:
        """As the manifest names it."""
        return f"zstd-{self.level}" if self.level else "none"


def choose(trials: list[Trial]) -> PackingChoice:
    """Choose the level that saves most among those that are fast enough. Pure."""
    good = [t for t in trials if t.share <= 1 - _WORTH and t.mb_s >= _SLOWEST_MB_S]
    if not good:
        told = ", ".join(f"level {t.level}: {t.share:.0%} at {t.mb_s:.0f} MB/s" for t in trials)
        return PackingChoice(0, f"packing does not pay ({told or 'nothing was tried'})")
    # A few per cent less are not worth half the speed.
    best = min(good, key=lambda t: (round(t.share / 0.05), -t.mb_s))
    return PackingChoice(best.level, f"{best.share:.0%} of its size at {best.mb_s:.0f} MB/s")


def measure(path: Path) -> list[Trial]:
    """Try every level on a sample from the middle of the file."""
    size = path.stat().st_size
    with path.open("rb") as source:
        source.seek(max(0, (size - _SAMPLE_BYTES) // 2))
        sample = source.read(_SAMPLE_BYTES)
    if not sample:
        return []
    return [_try(level, sample, str(path)) for level in _LEVELS]


def _try(level: int, sample: bytes, subject: str) -> Trial:
    """Pack the sample. Its process's own time counts: what else the machine does says nothing of later."""
    with tempfile.TemporaryFile() as plain, tempfile.TemporaryFile() as packed:
        plain.write(sample)
        plain.seek(0)
        took_s = _timed(subject, ["-T1", f"-{level}", "-c"], plain, packed)
        return Trial(level, packed.tell() / len(sample), len(sample) / _MB / max(took_s, 1e-6))


def _timed(subject: str, arguments: list[str], source: IO[bytes], target: IO[bytes]) -> float:
    """Run zstd from one file to another and return the seconds of CPU that it took."""
    with tempfile.TemporaryFile() as said:
        try:
            argv, env = ["zstd", "-q", *arguments], programs.in_english()
            child = subprocess.Popen(argv, stdin=source, stdout=target, stderr=said, env=env)
        except OSError as error:
            raise DriverError(subject, *programs.missing("zstd", error)) from error
        late = threading.Timer(programs.WHOLE_FILE_S, child.kill)
        late.start()
        _, status, usage = os.wait4(child.pid, 0)
        late.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        _check(subject, child.returncode, said.read().decode(errors="replace"))
    target.seek(0, os.SEEK_END)
    return usage.ru_utime + usage.ru_stime


def pack(source: Path, target: Path, level: int) -> None:
    """Write `source`, packed, to `target`, and have it on disk."""
    _zstd(str(source), [f"-{level}", "-f", str(source), "-o", str(target)])
    flush(target)


def unpack(source: Path, target: Path) -> None:
    """Write what is packed in `source` to `target`. BadOutputError for a damaged file."""
    _zstd(str(source), ["-d", "-f", "--sparse", str(source), "-o", str(target)])


def flush(path: Path) -> None:
    """Have the file on disk, whatever happens to the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(folder: Path) -> None:
    """Have the names in the folder on disk, where its file system can be asked for that."""
    try:
        flush(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise


def flush_all(name: str, paths: Iterable[Path]) -> None:
    """Have these files of `name` on disk, with their names. Typed errors."""
    try:
        folders = set()
        for path in paths:
            flush(path)
            folders.add(path.parent)
        for folder in folders:
            flush_folder(folder)
    except OSError as error:
        kind = NoCapacityError if error.errno in _FULL else DriverError
        raise kind(name, f"its files cannot be written to disk: {error}") from error


def checksum(path: Path) -> str:
    """SHA-256 of the file, hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _zstd(subject: str, arguments: list[str]) -> None:
    done = programs.run(subject, ["zstd", "-q", *arguments], programs.WHOLE_FILE_S)
    _check(subject, done.returncode, done.stderr)


def _check(subject: str, status: int, said: str) -> None:
    if not status:
        return
    problem = said.strip().replace("\n", " ")
    if programs.said_full(problem):
        raise NoCapacityError(subject, f"no room: {problem}", "free the shared directory")
    raise BadOutputError(subject, f"zstd failed: {problem}")
