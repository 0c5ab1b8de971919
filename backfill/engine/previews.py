"""Previews: what a policy file would have made of the latest day, played in a process of its own.

One at a time, and only the latest are remembered: the daemon waits for none of it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import count

from backfill.engine.checkpoint_order import CommandError

Body = dict[str, object]
# Plays the text of a policy file: `problems` of it, or what came of it. Takes minutes, raises nothing.
Player = Callable[[str], Body]
_MOST_KEPT = 8
MOST_TEXT = 60_000  # characters, and bytes of JSON: a question is no longer


class Previews:
    """Safe from several threads."""

    def __init__(self, play: Player) -> None:
        self._play = play
        self._known: OrderedDict[str, Body] = OrderedDict()
        self._lock = threading.Lock()
        self._numbers = count(1)

    def begin(self, body: Body) -> Body:
        """Begin to play `text`. CommandError while another one is played."""
        text = str(body.get("text", ""))
        with self._lock:
            busy = next((one["id"] for one in self._known.values() if one["state"] == "running"), None)
            if busy is not None:
                raise CommandError(f"{busy} is being played, one at a time; ask again when it is done")
            name = f"preview-{next(self._numbers)}"
            self._known[name] = {"id": name, "state": "running", "problems": [], "found": None}
            while len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        threading.Thread(target=self._work, args=(name, text), name="preview", daemon=True).start()
        return {"id": name}

    def told(self, body: Body) -> Body:
        """Return how far one has come. KeyError for one that is not known."""
        name = str(body.get("id", ""))
        with self._lock:
            found = self._known.get(name)
        if found is None:
            return {
                "error": f"there is no '{name[:80]}'; the latest {_MOST_KEPT} are kept",
                "kind": "unknown",
            }
        return dict(found)

    def _work(self, name: str, text: str) -> None:
        played = self._play(text)
        state = "failed" if played.get("problems") else "done"
        with self._lock:
            if name in self._known:
                self._known[name] = {**self._known[name], **played, "state": state}
