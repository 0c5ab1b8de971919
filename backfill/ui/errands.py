"""Orders that take the daemon minutes: given, and awaited."""

from __future__ import annotations

import time
from collections.abc import Callable

from backfill.ui.client import Answer, AskError, Asking
from backfill.ui.parser import NO, UNAVAILABLE, say

# So often the daemon is asked whether it is done, and so long it may be silent meanwhile, seconds.
_LOOK_EVERY_S, _PATIENCE_S = 0.5, 60.0


def awaited(client: Asking, question: str, **body: object) -> Answer:
    """Order it, and return what came of it. AskError where nothing did."""
    name = client.ask(question, **body)["id"]
    try:
        while (answer := patiently(lambda: client.ask("errand", id=name), name))["state"] == "running":
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        say(f"{name} goes on without you")
        raise
    if answer["problems"]:
        raise AskError("; ".join(answer["problems"]), NO, answer)
    found: Answer = answer["found"]
    return found


def patiently(ask: Callable[[], Answer], name: str) -> Answer:
    """Return how far an order is. AskError where nobody has answered for long, or knows of it."""
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return ask()
        except AskError as error:
            if error.code != UNAVAILABLE:
                raise
            if time.monotonic() > until_s:
                raise AskError(f"{error}; {name} may go on without you", error.code) from error
        time.sleep(_LOOK_EVERY_S)
