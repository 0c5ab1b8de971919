"""Nodes of slurm.conf whose NodeAddr is a name: does it still mean what slurmctld thinks?"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from backfill.core.model.cluster import Node
from backfill.core.model.quantities import fold_hostlist
from backfill.drivers.slurm.commands import SlurmTools
from backfill.ports.errors import DriverError, UnreachableError

# `scontrol getaddrs` prints "node: address:port"; an IPv6 address stands in brackets.
_USED = re.compile(r"^(\S+): \[?([0-9A-Fa-f.:]+?)\]?:\d+\s*$", re.MULTILINE)
Resolve = Callable[[str], Collection[str]]


def resolve(name: str) -> frozenset[str]:
    """Every IP address that a name has on this machine; OSError when it has none."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


@dataclass(slots=True)
class Lookup:
    """slurmctld looks a name up once and keeps the answer; this finds out when it is old.

    From 23.02 on it tells which address it uses. An older one is told to look when we first do, and
    is then believed to use what the name meant when it was last told.
    """

    commands: SlurmTools
    resolve: Resolve = resolve
    _believed: dict[str, str] = field(default_factory=dict)
    # By node: the address that was written or may have been, and the name to be written after it.
    _owed: dict[str, tuple[str, str]] = field(default_factory=dict)

    def refresh(self, nodes: Iterable[Node]) -> dict[str, str]:
        """Look up the names anew; return one sentence for each node where all is not well.

        Where a name means another address by now that address is written, and then the name again:
        slurmctld looks up only what differs. Nothing of the site's is changed by that.
        """
        every = list(nodes)
        for node in every:
            self._finish(node)
        named = {node.name: node for node in every if node.named}
        used = self._used(named) if named else {}
        found: dict[str, str] = {}
        for name, node in named.items():
            try:
                meant = self.resolve(node.address)
            except (OSError, UnicodeError) as error:
                why = getattr(error, "strerror", "") or error
                found[name] = (
                    f"its NodeAddr {node.address} has no address here ({why}); "
                    "correct DNS or /etc/hosts, or give the IP address"
                )
                continue
            old = used.get(name) or self._believed.get(name, "")
            if old in meant:
                continue
            now = " or ".join(sorted(meant))
            try:
                self._flush(node, min(meant))
            except UnreachableError:
                raise
            except DriverError as error:
                found[name] = (
                    f"slurmctld could not be told that its NodeAddr {node.address} means {now}: {error}"
                )
                continue
            if old:
                found[name] = (
                    f"its NodeAddr {node.address} means {now} now, and "
                    f"slurmctld used {old}: it has been told to look it up again"
                )
        return found

    def _flush(self, node: Node, address: str) -> None:
        # Noted first: a call that failed may have acted.
        self._owed[node.name] = (address, node.address)
        self._write(node.name, address)
        self._write(node.name, node.address)
        del self._owed[node.name]
        self._believed[node.name] = address

    def _finish(self, node: Node) -> None:
        """Give back the name to a node that has but the address, if nobody else has changed it."""
        address, name = self._owed.get(node.name, ("", ""))
        if address and node.address == address:
            self._write(node.name, name)
            self._believed[node.name] = address
        self._owed.pop(node.name, None)

    def _write(self, name: str, address: str) -> None:
        self.commands.run(["scontrol", "update", f"NodeName={name}", f"NodeAddr={address}"], name)

    def _used(self, names: Iterable[str]) -> dict[str, str]:
        """Ask for the addresses to which slurmctld sends, by node; none where it does not tell."""
        try:
            output = self.commands.run(["scontrol", "getaddrs", fold_hostlist(names)])
        except UnreachableError:
            raise
        except DriverError:
            return {}
        return dict(_USED.findall(output))
