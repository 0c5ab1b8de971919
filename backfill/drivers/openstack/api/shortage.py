"""Tells by their words the refusals and faults that mean: there is no room; pure."""

from __future__ import annotations

# Nova and Neutron answer 403, 409 or 413 for quota; only the text tells it from a denial.
_QUOTA = (
    "quota exceeded",
    "exceeds quota",
    "over quota",
    "over a limit",  # where Keystone keeps the limits
    "maximum number of",
    "overlimit",
    "exceeds allowed gigabytes quota",
)
_NO_ROOM = (
    "no valid host",
    "insufficient compute resources",
    "exceeded max scheduling attempts",
    "not enough",
    "no space left",
)


def is_quota(text: str) -> bool:
    """Return True if a refusal speaks of a quota."""
    return any(word in text.lower() for word in _QUOTA)


def is_no_room(text: str) -> bool:
    """Return True if a server's fault says that there was no room for it."""
    return is_quota(text) or is_no_zone(text) or any(word in text.lower() for word in _NO_ROOM)


def is_no_zone(text: str) -> bool:
    """Return True if a zone was refused: Nova does not know it, or none of its hosts is in service."""
    return "availability zone is not available" in text.lower()
