"""Nodes of slurm.conf whose NodeAddr is a name: does it still mean what slurmctld thinks?"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from backfill.core.cluster import Node
from backfill.core.quantities import fold_hostlist
from backfill.drivers.slurm.commands import Commands
from backfill.ports import DriverError, UnreachableError

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

    commands: Commands
    resolve: Resolve = resolve
    _believed: dict[str, str] = field(default_factory=dict)

    def refresh(self, nodes: Iterable[Node]) -> dict[str, str]:
        """What was found and done, one sentence for each node where all is not well.

        Where a name means another address by now that address is written, and then the name again:
        slurmctld looks up only what differs. Nothing of the site's is changed by that.
        """
        named = {node.name: node for node in nodes if node.named}
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
            for address in (min(meant), node.address):
                change = ["scontrol", "update", f"NodeName={name}", f"NodeAddr={address}"]
                self.commands.run(change, name)
            self._believed[name] = min(meant)
            if old:
                found[name] = (
                    f"its NodeAddr {node.address} means {' or '.join(sorted(meant))} now, and "
                    f"slurmctld used {old}: it has been told to look it up again"
                )
        return found

    def _used(self, names: Iterable[str]) -> dict[str, str]:
        """The addresses to which slurmctld sends, by node; none where it does not tell."""
        try:
            output = self.commands.run(["scontrol", "getaddrs", fold_hostlist(names)])
        except UnreachableError:
            raise
        except DriverError:
            return {}
        return dict(_USED.findall(output))
