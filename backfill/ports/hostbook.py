"""What each host was when instances of ours came to it, so that no other is taken for it."""

from __future__ import annotations

import threading
from collections.abc import Collection


class HostBook:
    """Hosts by name, as they said they were. Safe from several threads; this one forgets with the process.

    Behind a name there may suddenly be another machine, or another cloud's project: a mistake in the
    policy file, in DNS or in a credential. All of our instances would seem gone from it, and their jobs
    would begin anew beside themselves.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, str] = {}
        self._seen: set[str] = set()  # those that were as they are known, since the process began

    def contradiction(self, host: str, identity: str, *, alone: bool) -> str:
        """Return in words why `host` cannot be this; nothing, where it is as before or nothing is known.

        What it is known as from now on is kept. `alone`: no two hosts can be the same.
        """
        with self._lock:
            before = self._hosts.get(host)
            if before == identity:
                self._seen.add(host)
                return ""
            if before is not None:
                return f"until now it was {before}"
            others = sorted(other for other, one in self._hosts.items() if one == identity)
            if alone and others:
                return f"that is what host {others[0]} is"
            self._hosts[host] = identity
            self._seen.add(host)
            self._changed(self._hosts)
            return ""

    def keep(self, hosts: Collection[str]) -> None:
        """Forget all others that were not seen in this process: nothing of ours is left on them."""
        with self._lock:
            kept = self._seen.union(hosts)
            left = {host: identity for host, identity in self._hosts.items() if host in kept}
            if left != self._hosts:
                self._hosts = left
                self._changed(left)

    def _changed(self, hosts: dict[str, str]) -> None:
        """Do nothing more."""
