"""The fence in a guest: jobs are held across a stop, and some ended before any of them runs again."""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from backfill.drivers.libvirt.guest.agent import Ask, ask_until
from backfill.ports.errors import BadOutputError

FENCE_PROGRAM = "/usr/local/sbin/backfill-fence"
# An image of before has no such program, and no job in it was ever held.
_IF_THERE = 'test ! -x "$0" || exec "$0" "$@"'


def hold(ask: Ask, name: str, limit_s: float) -> None:
    """Freeze all jobs in the guest."""
    ask_until(ask, name, lambda: [FENCE_PROGRAM, "hold"], limit_s)


def clear(ask: Ask, name: str, now_s: float, ended: Collection[int], limit_s: float) -> float:
    """Set the clock, end these jobs before anything of them runs, and let all else go on.

    `now_s` is the time at which this is called; what passes until the guest is asked is added. Returns
    by how many seconds the clock was set forward. BadOutputError for an answer that does not tell.
    """
    began_s = time.monotonic()

    def program() -> list[str]:
        words = ["clear", f"{now_s + time.monotonic() - began_s:.6f}", *map(str, sorted(ended))]
        return [FENCE_PROGRAM, *words] if ended else ["/bin/sh", "-c", _IF_THERE, FENCE_PROGRAM, *words]

    return _correction_s(name, ask_until(ask, name, program, limit_s))


def _correction_s(name: str, told: str) -> float:
    """Read `correction SECONDS`, the first line; nothing is said by a guest without the program."""
    if not told:
        return 0.0
    word, _, number = told.splitlines()[0].partition(" ")
    try:
        found = float(number)
    except ValueError:
        found = math.nan
    if word != "correction" or not math.isfinite(found):
        raise BadOutputError(name, f"{FENCE_PROGRAM} did not tell how far the clock was off: {told[:100]!r}")
    return found
