"""Cloning: how new instances come from their master image."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from backfill.core.model.fleet import CloneMethod
from backfill.core.model.keys import key


class Choice(StrEnum):
    """The three ways of cloning, or whichever suits the rate at which instances are wanted."""

    FULL = "full"
    LINKED = "linked"
    INSTANT = "instant"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Cloning:
    """How instances are cloned. Measured by Multiverse (CCGrid 2020) and by us: an instant clone is
    ready several times sooner and shares memory, which pays when many come at once. One that boots
    needs no parent that occupies a host's page cache, which pays when one comes now and then.
    """

    method: Choice = key(
        Choice.LINKED,
        "full, linked, instant, or auto: instant while many instances are made, linked otherwise.",
    )
    instant_from_per_min: int = key(
        4, "With auto: from this many instances made within the last minute on, clones are instant."
    )

    at_once_per_host: int = key(
        8, "How many are made at the same time on one host; the others wait in order."
    )
    per_min_per_host: int = key(0, "How many may begin within a minute on one host; 0: no limit.")
    per_min_per_image: int = key(0, "The same for one master image, unless the image sets its own.")

    def choose(self, made_last_minute: int, wanted: str = "") -> CloneMethod:
        """Choose the way for an instance that is wanted now; `wanted`: its image's own choice."""
        method = Choice(wanted) if wanted else self.method
        if method is not Choice.AUTO:
            return CloneMethod(method.value)
        rush = made_last_minute >= self.instant_from_per_min
        return CloneMethod.INSTANT if rush else CloneMethod.LINKED
