"""Looks into guests whether they are what their states come to: orders need no run for those."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from backfill.abilities import StateSeer, StateTeller
from backfill.core.readiness import Stated
from backfill.engine.looking import Outside
from backfill.ports import DriverError

# A guest takes a fraction of a second, and one that is silent the whole of its time.
_AT_ONCE = 8

Place = tuple[str, int]


def look(outside: Outside, places: Mapping[str, Place]) -> dict[str, str]:
    """What differs, by node, from what its states come to now; an empty text: nothing does.

    `places`: by node its host and generation. Absent: it could not be seen from here. Blocks for
    seconds. DriverError: the states do not render.
    """
    salt = outside.provisioner
    if salt is None or not isinstance(salt, StateTeller):
        return {}
    seers = {host: p for host, p in outside.providers.items() if isinstance(p, StateSeer)}
    known = salt.stated({node: gen for node, (host, gen) in places.items() if host in seers})

    def differs(node: str, stated: Stated) -> str | None:
        host, _ = places[node]
        try:
            return seers[host].differs(host, node, stated)
        except DriverError:  # it does not run, or its agent is silent
            return None

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="sight") as threads:
        found = dict(zip(known, threads.map(differs, known, known.values()), strict=True))
    return {node: told for node, told in found.items() if told is not None}
