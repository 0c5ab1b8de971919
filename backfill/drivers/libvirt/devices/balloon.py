"""Memory back from a running guest by its balloon, and what of it the host really got."""

from __future__ import annotations

import time

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.devices.device_xml import has_balloon
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import BusyError, RefusedError

_POLL_S = 0.05


def give_memory(pool: Pool, host: str, name: str, keep_mb: int | None) -> int:
    """See `MemoryGiver.give_memory`."""
    _, before = pool.need(host, name)
    if before.state is not InstanceState.RUNNING:
        raise BusyError(name, f"it is {before.state} on {host}; a balloon needs a running guest")
    if not has_balloon(pool.on(host).live_document(name)):
        raise RefusedError(
            name, "it has no balloon", "set libvirt.hardware.balloon, and clone by linked or full"
        )
    whole_mb = before.resources.memory_mb
    wanted_mb = whole_mb if keep_mb is None else min(keep_mb, whole_mb)
    deadline_s = time.monotonic() + pool.config.limits.agent_s
    # A guest gives what it has to spare; what it cannot is no error, only less.
    while pool.on(host).set_balloon(name, wanted_mb) > wanted_mb and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    _, after = pool.need(host, name)
    return max(0, (before.rss_mb or 0) - (after.rss_mb or 0))
