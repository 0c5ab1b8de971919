"""Files that interrupted or foreign hands left behind: told of, and removed when people say so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from backfill.ports.capabilities import LeakFinder

# Younger files may belong to an instance that is just being made, or to a daemon that is restarted.
AGE_GUARD_S = 3600.0


def leaks_told(finders: Iterable[LeakFinder], *, remove: bool) -> dict[str, object]:
    """Look at the shared directories and at all hosts, for minutes. DriverError: it is not certain."""
    leaks = [(finder, leak) for finder in finders for leak in finder.leaks(AGE_GUARD_S)]
    if remove:
        for finder, leak in leaks:
            finder.remove_leak(leak.name, AGE_GUARD_S)
    return {"leaks": [asdict(leak) for _, leak in leaks], "removed": remove}
