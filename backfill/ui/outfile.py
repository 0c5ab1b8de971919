"""Writes a file whole or not at all, and says beforehand whether that can be done."""

from __future__ import annotations

import gzip
import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

_STDOUT = (Path("-"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1"))


class OutputError(Exception):
    """A file cannot be written: one sentence with its name and the remedy."""


def require_writable(outputs: Iterable[Path | None], inputs: Iterable[Path | None] = ()) -> None:
    """Raise OutputError if one cannot be written, is named twice, or is one of `inputs`.

    None is an option that was not given. Asked before hours of work are done for nothing.
    """
    read = {path.resolve() for path in inputs if path is not None}
    seen: set[Path] = set()
    for path in outputs:
        if path is None or path in _STDOUT:
            continue
        problem = _problem(path)
        whole = path.resolve()
        if problem is None and (path.is_file() or not path.exists()):
            if whole in seen:
                problem = "two files would have this name; give each its own"
            if whole in read:
                problem = "it is one of the inputs; give another name"
        if problem:
            raise OutputError(f"cannot write {path}: {problem}")
        seen.add(whole)


def _problem(path: Path) -> str | None:
    try:
        return _seen(path)
    except OSError as error:
        return f"{error.strerror}; choose another place"


def _seen(path: Path) -> str | None:
    if path.is_dir():
        return "it is a directory; name a file in it"
    if path.exists() and not path.is_file():
        return None if os.access(path, os.W_OK) else "permission denied; choose another file"
    if not path.parent.is_dir():
        return f"there is no directory {path.parent}; make it, or choose another place"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"you may not write in {path.parent}; choose another place"
    return None


def write_text(path: Path, chunks: Iterable[str]) -> None:
    """Write a file whole or not at all, packed if its name ends with `.gz`.

    A device or pipe is written to directly. A link stays, and what it leads to is written.

    OutputError if the disk is full, for example.
    """
    try:
        _write(path, chunks)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}; choose another place") from error


def _write(path: Path, chunks: Iterable[str]) -> None:
    if path in _STDOUT:
        # Opened anew, a redirected one would begin at its first byte again.
        sys.stdout.writelines(chunks)
        return
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as out:
            out.writelines(chunks)
        return
    builder = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with _open(builder, packed=path.suffix == ".gz") as out:
            out.writelines(chunks)
        builder.replace(path)
    finally:
        builder.unlink(missing_ok=True)


@contextmanager
def _open(path: Path, *, packed: bool) -> Iterator[TextIO]:
    """Open for writing; the same text makes the same file, so that an archive tells neither name nor time."""
    if not packed:
        with path.open("w", encoding="utf-8") as plain:
            yield plain
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as archive,
        io.TextIOWrapper(archive, encoding="utf-8") as out,
    ):
        yield out
