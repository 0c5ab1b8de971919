"""The host book as a file of the state directory: what hosts were outlives the daemon."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from backfill.ports.hostbook import HostBook

_LOG = logging.getLogger(__name__)


class WrittenHostBook(HostBook):
    """Kept as JSON, `{"host": "what it said it was"}`: those with instances of ours.

    A file that is missing or damaged knows nothing, and one that cannot be written is no reason to end:
    both are as safe as no book.
    """

    def __init__(self, path: Path, *, write: bool = True) -> None:
        super().__init__()
        self._path, self._write = path, write
        self.where = str(path)
        self._known = _read(path)
        self._held = frozenset(self._known)

    def _changed(self, hosts: dict[str, str]) -> None:
        if not self._write:
            return
        fresh = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with fresh.open("w") as stream:
                json.dump(hosts, stream, indent=1, sort_keys=True)
                stream.flush()
                os.fsync(stream.fileno())
            fresh.replace(self._path)
        except OSError as error:
            _LOG.warning("%s: which machines the hosts are is not kept over a restart: %s", self._path, error)


def _read(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _LOG.warning("%s: which machines the hosts were is not known: %s", path, error)
        return {}
    if isinstance(found, dict) and all(isinstance(identity, str) for identity in found.values()):
        return found
    _LOG.warning("%s: which machines the hosts were is not known: it is not such a file", path)
    return {}
