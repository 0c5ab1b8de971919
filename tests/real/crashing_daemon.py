"""The daemon with a journal that ends the process, as SIGKILL does, at one named record.

BACKFILL_CRASH is three words: `before` or `after` the record is stored; its kind (intent, outcome,
phase); the action's or phase's name, such as `after intent PauseInstance`. `before outcome` is the
moment at which an effect has happened and nobody knows of it yet. Several moments stand with commas
between them, and the first to come counts: an effect may be seen before its call is back.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Record
from backfill.ui.cli import main
from backfill.ui.commands import daemon as daemon_command

_MOMENTS = [tuple(moment.split()) for moment in os.environ["BACKFILL_CRASH"].split(",")]


class CrashingJournal(SqliteJournal):
    """A journal that takes the daemon with it."""

    def append(self, records: Iterable[Record]) -> None:
        """Store all of them, or none."""
        ours = list(records)
        _end_at("before", ours)
        super().append(ours)
        _end_at("after", ours)


def _end_at(when: str, records: Iterable[Record]) -> None:
    if any((when, record.kind, _name_of(record)) in _MOMENTS for record in records):
        os.kill(os.getpid(), signal.SIGKILL)


def _name_of(record: Record) -> str:
    body = record.body
    if record.kind == "outcome":
        return str(body["key"]).split(":")[0]
    node = body.get("node")
    # A change of one of Slurm's own nodes has a node as well, and that has no phase.
    return str(node["phase"]) if isinstance(node, dict) and "phase" in node else str(body.get("t"))


if __name__ == "__main__":
    vars(daemon_command)["SqliteJournal"] = CrashingJournal
    sys.exit(main(sys.argv[1:]))
