"""Where there was no room lately: a flavour in a zone that failed is not tried for a while."""

from __future__ import annotations

import threading

from backfill.ports.errors import NoCapacityError

Choice = tuple[str, str]  # flavour, zone


class Bench:
    """Remembers failures for `for_s` seconds. Safe from several threads; times are monotonic."""

    def __init__(self, choices: tuple[Choice, ...], for_s: float) -> None:
        self._choices, self._for_s = choices, for_s
        self._until: dict[Choice, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def sit(self, choice: Choice, why: str, now_s: float) -> None:
        """Do not try this one for a while."""
        with self._lock:
            self._until[choice] = (now_s + self._for_s, why)

    def sit_zone(self, zone: str, why: str, now_s: float) -> None:
        """The same for everything in a zone."""
        for choice in self._choices:
            if choice[1] == zone:
                self.sit(choice, why, now_s)

    def is_full(self, now_s: float) -> bool:
        """Whether there is no choice that may be tried."""
        with self._lock:
            return all(self._until.get(c, (0.0, ""))[0] > now_s for c in self._choices)

    def pick(self, subject: str, now_s: float) -> Choice:
        """The first choice that may be tried; NoCapacityError says why there is none."""
        with self._lock:
            for choice in self._choices:
                if self._until.get(choice, (0.0, ""))[0] <= now_s:
                    return choice
            until_s, why = min(self._until[choice] for choice in self._choices)
        raise NoCapacityError(
            subject,
            f"there was no room for any flavour in any zone ({why}); next try in {until_s - now_s:.0f} s",
            "name more flavours or zones, or wait",
        )


def text_of(choice: Choice) -> str:
    """`flavour@zone`, as it is kept with the server."""
    return "@".join(choice)


def choice_of(text: str) -> Choice:
    """The inverse of `text_of`."""
    flavour, _, zone = text.partition("@")
    return flavour, zone
