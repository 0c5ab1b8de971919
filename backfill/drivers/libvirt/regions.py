"""The files behind shared memory regions: libvirt makes them on a host and never removes them."""

from __future__ import annotations

import logging
import re

from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill.devices")


def sweep(pool: Pool, host: str) -> None:
    """Remove those of our cluster on the host that nobody holds: each is memory of the host.

    What cannot be removed now stays for the next one that gives a region back there.
    """
    ours = re.compile(rf"backfill-{re.escape(pool.config.cluster)}-\d[\d_+]*-{re.escape(host)}")
    try:
        with pool.one_by_one(f"regions of {host}"):
            hypervisor = pool.on(host)
            found = [name for name in hypervisor.shared_files() if ours.fullmatch(name)]
            if found:
                pool.devices.for_unheld(found, hypervisor.remove_shared_file)
    except DriverError as error:
        _LOG.warning("shared memory that nobody holds stays on %s: %s", host, error)
