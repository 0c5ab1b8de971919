"""Opens a trace file as lines of bytes, whether plain, gzip or zip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from lzma import LZMAError
from pathlib import Path
from typing import IO, Protocol
from zipfile import BadZipFile, ZipFile

from backfill.sim.traces.trace import TraceError

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK"
_REMEDIES = (
    (IsADirectoryError, "name a file in it"),
    (FileNotFoundError, "check the path"),
    (PermissionError, "ask for the right to read it"),
)
_OTHER_REMEDY = "copy it into a plain file"  # a pipe, for example: it is looked at twice


class ByteLines(Protocol):
    """An open file, as a reader needs it."""

    def __iter__(self) -> Iterator[bytes]: ...

    def readline(self) -> bytes: ...


@contextmanager
def open_lines(path: Path) -> Iterator[ByteLines]:
    """Open the file by what it contains, not by its name; TraceError if it cannot be read."""
    try:
        with path.open("rb") as raw:
            magic = raw.read(2)
            raw.seek(0)
            if magic == GZIP_MAGIC:
                with gzip.open(raw) as lines:
                    yield lines
            elif magic == ZIP_MAGIC:
                with ZipFile(raw) as pack, _member(path, pack) as lines:
                    yield lines
            else:
                yield raw
    except (EOFError, zlib.error, LZMAError, gzip.BadGzipFile, BadZipFile) as error:
        raise TraceError(path, 0, f"the archive is damaged ({error}); fetch it again") from error
    except OSError as error:
        remedy = next((r for kind, r in _REMEDIES if isinstance(error, kind)), _OTHER_REMEDY)
        why = error.strerror or str(error).rstrip(".")
        problem = f"cannot be read: {why}; {remedy}"
        raise TraceError(path, 0, problem) from error


def _member(path: Path, pack: ZipFile) -> IO[bytes]:
    names = [name for name in pack.namelist() if not name.endswith("/")]
    wanted = [name for name in names if name.lower().endswith((".swf", ".txt"))] or names
    if len(wanted) != 1:
        raise TraceError(path, 0, f"holds {len(wanted)} traces where one is expected; unpack it and name one")
    try:
        return pack.open(wanted[0])
    except RuntimeError as error:  # how zipfile names a password or a compression it does not know
        problem = f"the archive cannot be unpacked ({error}); unpack it and name the file"
        raise TraceError(path, 0, problem) from error
