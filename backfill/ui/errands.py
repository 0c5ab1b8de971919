"""Orders that take the daemon minutes: given, and awaited."""

from __future__ import annotations

import time

from backfill.ui.client import Answer, AskError, Asking
from backfill.ui.parser import NO, say

# So often the daemon is asked whether it is done, seconds.
_LOOK_EVERY_S = 0.5


def awaited(client: Asking, question: str, **body: object) -> Answer:
    """Order it, and return what came of it. AskError where nothing did."""
    name = client.ask(question, **body)["id"]
    try:
        while (answer := client.ask("errand", id=name))["state"] == "running":
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        say(f"{name} goes on without you")
        raise
    if answer["problems"]:
        raise AskError("; ".join(answer["problems"]), NO, answer)
    found: Answer = answer["found"]
    return found
