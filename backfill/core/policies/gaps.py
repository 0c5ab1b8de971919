"""Gaps: which stretches of free time are long enough to be worth beginning something in them."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from backfill.core.model.keys import key
from backfill.core.model.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class Gaps:
    """What is known of the hours ahead: reservations and starts that Slurm plans. In seconds."""

    boot_pays_s: float = key(
        300.0,
        "No instance is made on a host that is known to be wanted again sooner than this: it "
        "could not repay its boot.",
        least=0,
    )
    whole_jobs: bool = key(
        False,
        "No instance is made either if, by its time limit, not even the shortest waiting job "
        "could end before: for ladders that cannot keep a job's work. Jobs without a limit "
        "never could.",
    )
    return_pays_s: float = key(
        10.0, "Nothing returns or moves to a host that is known to be wanted again sooner than this.", least=0
    )
    clear_before_s: float = key(
        0.0,
        "How long before a host's maintenance instances leave it. What a ladder with "
        "`suspend` keeps in the host's memory then goes to disk, however long that rung "
        "would otherwise last.",
    )
    foresee: bool = key(
        False, "Leave a rung at once if time limits show that the host stays busy until after it."
    )

    def too_short(self, now_s: float, wanted_s: float | None, pays_s: float) -> Reason | None:
        """Return why a host that is wanted at `wanted_s` (None: not known) is not worth it."""
        if wanted_s is None or wanted_s - now_s >= pays_s:
            return None
        if wanted_s <= now_s:
            return because(Code.WANTED_NOW)
        soon = because(Code.WANTED_SOON, wanted_in_s=wanted_s - now_s)
        return soon if pays_s == inf else soon.plus(pays_s=pays_s)

    def pays_s(self, shortest_s: float) -> float:
        """Return how long a host must not be wanted for an instance there to pay.

        `shortest_s`: the least time limit of the waiting jobs.
        """
        return self.boot_pays_s + (shortest_s if self.whole_jobs else 0.0)

    def clear_at_s(self, maintenance_s: float) -> float:
        """Return when a host must be left for a maintenance that begins then."""
        return maintenance_s - self.clear_before_s

    def pointless(self, rung_over_s: float | None, free_again_s: float | None) -> bool:
        """Return True if a rung is over before its host can be free, so that waiting on it is in vain."""
        if not self.foresee or rung_over_s is None or free_again_s is None:
            return False
        return free_again_s > rung_over_s


def late(now_s: float, left_s: float, free_again_s: float | None, deadline_s: float) -> bool:
    """Predicted finish against deadline: does waiting for the own host miss it?

    `left_s`: what the job may still run by its limit. Without a deadline (0), or where the host's
    return is unknown, nothing is late.
    """
    if deadline_s <= 0.0 or free_again_s is None:
        return False
    return max(now_s, free_again_s) + left_s > deadline_s
