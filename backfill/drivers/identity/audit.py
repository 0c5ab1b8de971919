"""The audit log: one line of JSON for each act, refusal and failed login, in files of bounded size."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

from backfill.ports.errors import RefusedError

MOST_BYTES, FILES = 10 << 20, 5
_APPENDING = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AuditFiles:
    """`audit.log`, and the ones before it: `audit.log.1` is the latest of those. Thread-safe."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, files: int = FILES) -> None:
        """`most_bytes`: of each file. RefusedError where the first one cannot be opened."""
        self.path, self._most, self._files = path, most_bytes, files
        self._lock = threading.Lock()
        with self._lock:
            os.close(self._open())

    def write(self, entry: Mapping[str, object]) -> None:
        """Store one line. RefusedError where that cannot be."""
        line = json.dumps(entry, sort_keys=True).encode() + b"\n"
        with self._lock:
            file = self._open()
            try:
                if os.fstat(file).st_size + len(line) > self._most:
                    os.close(file)
                    file = -1
                    self._rotate()
                    file = self._open()
                _append(file, line)
            except OSError as error:
                raise self._refused(error) from error
            finally:
                if file >= 0:
                    os.close(file)

    def _open(self) -> int:
        try:
            return os.open(self.path, _APPENDING, 0o640)
        except OSError as error:
            raise self._refused(error) from error

    def _rotate(self) -> None:
        names = [self.path, *(self.path.with_name(f"{self.path.name}.{n}") for n in range(1, self._files))]
        for older, newer in reversed(list(zip(names[1:], names, strict=False))):
            if newer.exists():
                newer.replace(older)

    def _refused(self, error: OSError) -> RefusedError:
        return RefusedError(
            str(self.path), f"the audit log cannot be written: {error.strerror}", "see to its disk"
        )


def _append(file: int, line: bytes) -> None:
    """Write the whole line. OSError, and nothing of it is left, where the disk takes only a part."""
    before = os.fstat(file).st_size
    if os.write(file, line) < len(line):
        os.ftruncate(file, before)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
