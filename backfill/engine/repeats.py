"""Orders that were given twice, because the first answer was lost: the second one does nothing."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha256

Body = dict[str, object]
# So long, and of so many orders, the answer is known.
KEPT_S, _MOST = 3600.0, 1000
_LONGEST_KEY = 128


class Repeats:
    """Answers by who has ordered and by the key that they have given. Safe from several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._known: OrderedDict[tuple[str, str], tuple[float, bytes, Body | None]] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self, user: str, body: Body) -> Body | None:
        """Return the answer of an order that was given before; None: it is a new one, or has no key.

        Of one that is just being done it is an error. ValueError, one sentence, for a key of another order.
        """
        key = str(body.get("key") or "")
        if not key:
            return None
        if len(key) > _LONGEST_KEY:
            raise ValueError(f"an idempotency key of more than {_LONGEST_KEY} characters; give a shorter one")
        now_s, print_ = self._monotonic(), _print(body)
        with self._lock:
            known = self._known.get((user, key))
            if known is None or now_s - known[0] > KEPT_S:
                self._known[user, key] = (now_s, print_, None)
                self._known.move_to_end((user, key))
                while len(self._known) > _MOST:
                    self._known.popitem(last=False)
                return None
        _, before, answer = known
        if before != print_:
            raise ValueError("this idempotency key was given with another order; give each its own")
        if answer is None:
            return {"error": "this order is just being carried out; ask again in a moment", "kind": "busy"}
        return answer

    def end(self, user: str, body: Body, answer: Body) -> None:
        """Note that the order is done; one that failed may be given again."""
        place = (user, str(body.get("key") or ""))
        with self._lock:
            known = self._known.pop(place, None)
            if known is not None and "error" not in answer:
                self._known[place] = (known[0], known[1], answer)


def _print(body: Body) -> bytes:
    said = {key: value for key, value in body.items() if key not in ("as", "address", "key")}
    return sha256(json.dumps(said, sort_keys=True).encode()).digest()
