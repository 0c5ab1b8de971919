"""Opens a trace file as lines of bytes, whether plain, gzip or zip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile, ZipFile

from backfill.sim.trace import TraceError

GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK"


class ByteLines(Protocol):
    """What a reader needs of an open file."""

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
                with ZipFile(raw) as pack, pack.open(_only_member(path, pack)) as lines:
                    yield lines
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile, BadZipFile) as error:
        raise TraceError(path, 0, f"the archive is damaged ({error}); fetch it again") from error
    except OSError as error:
        raise TraceError(path, 0, f"cannot be read: {error.strerror or error}") from error


def _only_member(path: Path, pack: ZipFile) -> str:
    names = [name for name in pack.namelist() if not name.endswith("/")]
    wanted = [name for name in names if name.lower().endswith((".swf", ".txt"))] or names
    if len(wanted) != 1:
        raise TraceError(
            path, 0, f"holds {len(wanted)} traces where one is expected; unpack it and name one"
        )
    return wanted[0]
