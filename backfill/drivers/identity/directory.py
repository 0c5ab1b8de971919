"""The machine's users and groups by NSS, kept for a minute: a directory server may be behind it."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable, Collection

_KEPT_S = 60.0
_MOST_KEPT = 1024


class NssDirectory:
    """Safe from several threads: at worst two of them look the same up."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._groups: dict[str, tuple[float, frozenset[str]]] = {}

    def user(self, uid: int) -> str:
        """Return the user's name; empty where the machine knows none."""
        try:
            return pwd.getpwuid(uid).pw_name
        except (KeyError, OverflowError):
            return ""

    def knows_user(self, name: str) -> bool:
        """Return True if the machine has a user of this name."""
        try:
            pwd.getpwnam(name)
        except (KeyError, ValueError):
            return False
        return True

    def knows_group(self, name: str) -> bool:
        """Return True if the machine has a group of this name."""
        try:
            grp.getgrnam(name)
        except (KeyError, ValueError):
            return False
        return True

    def groups(self, user: str) -> Collection[str]:
        """Return the names of the groups that a user is in; none for a user who is not known."""
        known = self._groups.get(user)
        now_s = self._monotonic()
        if known is not None and now_s - known[0] < _KEPT_S:
            return known[1]
        if len(self._groups) >= _MOST_KEPT:
            self._groups.clear()
        found = frozenset(_groups(user))
        self._groups[user] = (now_s, found)
        return found


def _groups(user: str) -> Collection[str]:
    try:
        gids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, ValueError):
        return ()
    names = []
    for gid in gids:
        try:
            names.append(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return names
