"""Looks into guests whether they are what their states come to: orders need no run for those."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from backfill.engine.looking import Outside
from backfill.ports.capabilities import StateSeer, StateTeller
from backfill.ports.errors import DriverError

# So many hosts at once, and on each one guest after the other: whoever has to pause an instance
# there must not wait behind questions to silent agents.
_AT_ONCE = 8

Place = tuple[str, int]


def look(outside: Outside, places: Mapping[str, Place]) -> dict[str, str | None]:
    """Compare guests with their states; return the first difference by node, None if there is none.

    `places`: by node its host and generation. Absent: it could not be seen from here. Blocks for
    seconds. DriverError: the states do not render.
    """
    salt = outside.provisioner
    if salt is None or not isinstance(salt, StateTeller):
        return {}
    seers = {host: p for host, p in outside.providers.items() if isinstance(p, StateSeer)}
    known = salt.stated({node: gen for node, (host, gen) in places.items() if host in seers})

    def on(host: str) -> dict[str, str | None]:
        found = {}
        for node in (n for n in known if places[n][0] == host):
            with suppress(DriverError):  # it does not run, or its agent is silent
                found[node] = seers[host].differs(host, node, known[node])
        return found

    hosts = sorted({places[node][0] for node in known})
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sight") as threads:
        return {node: told for found in threads.map(on, hosts) for node, told in found.items()}
