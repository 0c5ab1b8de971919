"""Readiness: what a node must prove before it takes jobs, and for how long it may try."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.core.model.keys import key
from backfill.core.model.readiness import (
    ADDRESS,
    CLOCK,
    FILES,
    KEY,
    MUNGE,
    SALT,
    Streak,
    is_image_streak,
    kind_of,
)
from backfill.core.model.refusals import Code, Reason, Words, because


@dataclass(frozen=True, slots=True)
class Readiness:
    """Times in seconds. A check that has not passed within its time fails the node."""

    clock_offset_s: float = key(
        1.0,
        "How far a guest's or a host's clock may be off the controller's, including the error of measuring.",
    )
    clock_within_s: float = key(15.0, "The guest's clock is within clock_offset_s.")
    munge_within_s: float = key(
        15.0,
        "A credential made at the controller is understood in the guest, and the other way round; with "
        "Slurm's own keys instead of munge's: the guest has them.",
    )
    files_within_s: float = key(
        60.0, "Every file system that guests mount is mounted, and writable where it should be."
    )
    address_within_s: float = key(15.0, "The address that the node was promised under.")
    salt_within_s: float = key(
        120.0, "Everything is as Salt's states say; only checked if `salt.gate` is on."
    )
    retry_s: float = key(0.5, "Between two tries.")
    break_after: int = key(
        3,
        "After this many failures in a row on one host, or of one image on any host, nothing more "
        "is made there for rest_s. Then the host comes last and takes one at a time, until one is ready.",
    )
    rest_s: float = key(600.0, "How long nothing is made there after that.")

    def within_s(self, check: str) -> float:
        """Return how long a check may go on failing; 0 for what time cannot change."""
        limits = {
            CLOCK: self.clock_within_s,
            MUNGE: self.munge_within_s,
            KEY: self.munge_within_s,
            FILES: self.files_within_s,
            ADDRESS: self.address_within_s,
            SALT: self.salt_within_s,
        }
        return limits.get(kind_of(check), 0.0)

    def open_breaker(
        self, streaks: Mapping[str, Streak], now_s: float, name: str, hosts: Iterable[str]
    ) -> Reason | None:
        """Return why nothing may be made on host `name` (or of an image, by its streak) now, if nothing may.

        The image is to blame only when more than one host has failed with it.
        """
        if not self.on_trial(streaks, name):
            return None
        streak = streaks[name]
        if is_image_streak(name) and sum(host in streaks for host in hosts) < 2:
            return None
        if now_s >= streak.last_s + self.rest_s:
            return None
        last = Words(streak.problem)
        if is_image_streak(name):
            return because(Code.IMAGE_FAILS, count=streak.count, rest_s=self.rest_s, said=last)
        return because(Code.HOST_FAILS, host=name, count=streak.count, rest_s=self.rest_s, said=last)

    def on_trial(self, streaks: Mapping[str, Streak], name: str) -> bool:
        """Return True if so many failed in a row that a host (or image) rests, or has to prove itself."""
        return name in streaks and streaks[name].count >= self.break_after

    def rest_ends_s(self, streaks: Mapping[str, Streak], now_s: float) -> float:
        """Return when the next rest is over; 0 for none."""
        ends = [s.last_s + self.rest_s for s in streaks.values() if s.count >= self.break_after]
        return min((end_s for end_s in ends if now_s < end_s), default=0.0)
