"""What each host was when instances of ours came to it, so that no other is taken for it."""

from __future__ import annotations

import threading
from collections.abc import Collection


class HostBook:
    """Hosts by name, as they said they were. Safe from several threads; this one forgets with the process.

    Behind a name there may suddenly be another machine, or another cloud's project: a mistake in the
    policy file, in DNS or in a credential. All of our instances would seem gone from it, and their jobs
    would begin anew beside themselves. A host without instances of ours may become another.
    """

    where = ""  # the file that it is kept in

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, str] = {}
        self._held: frozenset[str] = frozenset()  # with instances of ours
        self._seen: set[str] = set()  # those that are what they were, as far as was asked in this process

    def contradiction(self, host: str, identity: str, *, alone: bool) -> str:
        """Return in words why `host` cannot be this; nothing, where nothing speaks against it.

        `alone`: no two hosts are one machine. Machines may have equal names all the same, so that only
        a host counts that has instances and was not found where it was.
        """
        with self._lock:
            before = self._known.get(host)
            if before is not None and same(before, identity):
                return ""
            if before is not None and host in self._held:
                self._seen.discard(host)
                return f"until now it was {before}"
            missing = sorted(self._held - self._seen - {host})
            others = [other for other in missing if same(self._known.get(other, ""), identity)]
            return f"that is what host {others[0]} was" if alone and others else ""

    def met(self, host: str, identity: str) -> None:
        """Know `host` as this from now on."""
        with self._lock:
            before = self._known.get(host)
            self._known[host] = identity
            self._seen.add(host)
            if host in self._held and before != identity:
                self._changed(self._of_use())

    def hold(self, hosts: Collection[str]) -> None:
        """Take note of the hosts that have instances of ours."""
        with self._lock:
            if self._held != hosts:
                self._held = frozenset(hosts)
                self._changed(self._of_use())

    def _of_use(self) -> dict[str, str]:
        return {host: identity for host, identity in self._known.items() if host in self._held}

    def _changed(self, hosts: dict[str, str]) -> None:
        """Do nothing more."""


def same(one: str, other: str) -> bool:
    """Return True if two names may be one machine's: one of them may lack its domain."""
    short = one.partition(".")[0] == other.partition(".")[0]
    return one == other or (short and ("." in one) != ("." in other))
