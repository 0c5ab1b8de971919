"""Errands: what people ask the daemon for that takes minutes. It is begun, and followed by its id.

One of a kind at a time, and only the latest are remembered: the daemon waits for none of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from backfill.engine.checkpoint_order import CommandError
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill.errands")
Body = dict[str, object]
# What is done: it returns `found`, or `problems` for why nothing came of it.
Work = Callable[[], Body]
# Who wants to know how it ended, in a few words.
Note = Callable[[str], None]
# Plays the text of a policy file: `problems` of it, or what came of it. Takes minutes, raises nothing.
Player = Callable[[str], Body]
_MOST_KEPT = 32
_NO_THREAD = "raise TasksMax of the daemon's unit, or free memory, and ask again"
MOST_TEXT = 60_000  # characters, and bytes of JSON: a question is no longer


class Errands:
    """Safe from several threads."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._began_s = int(wall())
        self._known: OrderedDict[str, Body] = OrderedDict()
        # Who still waits to hear how one ended.
        self._notes: dict[str, Note] = {}
        self._lock = threading.Lock()
        self._numbers = count(1)

    def begin(self, kind: str, work: Work, note: Note) -> Body:
        """Begin it in a thread of its own.

        CommandError while another one of the kind is under way, and where no thread is left for it.
        """
        with self._lock:
            busy = next((i for i, one in self._known.items() if _of(kind, i) and _runs(one)), None)
            if busy is not None:
                raise CommandError(f"{busy} is under way, one at a time; ask again when it is done")
            # By the beginning as well: whoever follows one of the daemon before finds no other by its name.
            name = f"{kind}-{self._began_s}.{next(self._numbers)}"
            self._known[name] = {"id": name, "state": "running", "problems": [], "found": None}
            self._notes[name] = note
            self._forget_old()
        try:
            threading.Thread(target=self._work, args=(name, work), name=kind, daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                del self._known[name]
                self._notes.pop(name, None)
            raise CommandError(f"{kind} cannot begin ({error}): {_NO_THREAD}") from error
        return {"id": name}

    def close(self) -> None:
        """Note of all that are under way that the daemon ends first; it does not wait for them."""
        with self._lock:
            left, self._notes = self._notes, {}
        for note in left.values():
            note("unknown: the daemon ended while this was under way; look, and begin it again")

    def told(self, body: Body, kind: str = "") -> Body:
        """Return how far one has come. `kind`: only one of this kind is told of; empty: of any."""
        name = str(body.get("id", ""))
        with self._lock:
            found = self._known.get(name)
        if found is None or not _of(kind, name):
            return {
                "error": f"there is no '{name[:80]}'; the latest {_MOST_KEPT} are kept",
                "kind": "unknown",
            }
        return dict(found)

    def _forget_old(self) -> None:
        """Only what is over: there is one of each kind at most that is not."""
        over = [name for name, one in self._known.items() if not _runs(one)]
        for name in over[: max(0, len(self._known) - _MOST_KEPT)]:
            del self._known[name]

    def _work(self, name: str, work: Work) -> None:
        try:
            ended = work()
        except (CommandError, DriverError, ValueError) as error:
            ended = {"problems": [str(error)]}
        except Exception:  # noqa: BLE001 - whoever waits for it must hear of its end
            _LOG.exception("%s ended in an unforeseen way", name)
            ended = {"problems": ["it ended in an unforeseen way; the daemon's log says how"]}
        problems = ended.get("problems")
        with self._lock:
            state = "failed" if problems else "done"
            self._known[name] = {**self._known[name], **ended, "state": state}
            note = self._notes.pop(name, None)
        if note is not None:
            note(f"failed: {problems}" if problems else "ok")


def _of(kind: str, name: str) -> bool:
    return not kind or name.rpartition("-")[0] == kind


def _runs(one: Body) -> bool:
    return one["state"] == "running"
