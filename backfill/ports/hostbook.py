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

    def known(self, host: str, identity: str) -> str:
        """Return what `host` was before; `identity` where nothing is known, which is kept from now on."""
        with self._lock:
            before = self._hosts.get(host)
            if before is None:
                before = self._hosts[host] = identity
                self._changed(self._hosts)
            return before

    def keep(self, hosts: Collection[str]) -> None:
        """Forget all others: nothing of ours is left on them."""
        with self._lock:
            left = {host: identity for host, identity in self._hosts.items() if host in hosts}
            if left != self._hosts:
                self._hosts = left
                self._changed(left)

    def _changed(self, hosts: dict[str, str]) -> None:
        """Do nothing more."""
