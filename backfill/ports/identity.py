"""Contracts with what tells who somebody is: tokens, the machine's users and groups, the audit log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TokenClaim:
    """A token that was verified: whose it is, and until when it holds (epoch seconds of the wall)."""

    user: str
    until_s: float


class TokenReader(Protocol):
    """Verifies tokens that others have issued."""

    def read(self, token: str) -> TokenClaim:
        """Return what a token says. RefusedError, one sentence, for any that is not to be believed."""


class Directory(Protocol):
    """The machine's users and groups; a directory server may be behind it, so that it may be slow."""

    def user(self, uid: int) -> str:
        """Return the user's name; empty where the machine knows none."""

    def groups(self, user: str) -> Collection[str]:
        """Return the names of the groups that a user is in; none for a user who is not known."""


class AuditLog(Protocol):
    """Who did what, or was refused, for those who ask later."""

    def write(self, entry: Mapping[str, object]) -> None:
        """Store one line. RefusedError where that cannot be."""
