"""Migration: how long a guest takes to another host, and how long nobody hears it meanwhile.

Two hosts on one machine, shared directory, software-emulated or KVM guests of 256 MB; `disk_*`: an
idle guest between directories of their own, so that its disk goes along (`disk_mb` of it).
`*_total_s` is the driver's call; `*_downtime_s` is the longest silence seen from outside, by pings
every 5 ms. QEMU's own figure is shorter: the network and the guest need time until they answer
again. One line of JSON comes last; seconds, medians.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from statistics import median
from typing import Any

import libvirt

from backfill.core.model.fleet import InstanceState
from tests.bench.pings import Pings
from tests.bench.rig import result
from tests.contract.instance_rig import spec
from tests.real.libvirt_guest import NAME, Guest
from tests.real.libvirt_rig import LibvirtRig, running_lab

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
ADDRESS = "10.77.1.1"
# Writes to 48 MB of memory again and again, which pre-copy has to send again and again.
_BUSY = (
    "(while :; do dd if=/dev/zero of=/dev/shm/busy bs=1M count=48 conv=notrunc 2>/dev/null; done)"
    " >/dev/null 2>&1 </dev/null & sleep 2; stat -c %s /dev/shm/busy"
)


def _downtime_s(domain: Any) -> float:
    """How long the guest stood still in its last move, by QEMU's own count."""
    return int(domain.jobStats(libvirt.VIR_DOMAIN_JOB_STATS_COMPLETED).get("downtime", 0)) / 1000


def one_move(guest: Guest) -> dict[str, float]:
    """Move it to the other host; seconds of the call, of silence, and by QEMU's own count."""
    source, target = guest.host, guest.other
    with Pings(ADDRESS) as pings:
        pings.heard()
        began_s = pings.now()
        guest.provider.migrate(source, NAME, target)
        took_s = pings.now() - began_s
        pings.heard()
    assert guest.state is InstanceState.RUNNING
    connection = guest.provider._pool.on(target)
    return {
        "total_s": took_s,
        "downtime_s": pings.longest_silence_s(since_s=began_s),
        "qemu_downtime_s": connection._on(NAME, _downtime_s),
    }


def main() -> int:
    """TRIALS moves of an idle guest, of one that writes to its memory, of one with its disk."""
    figures: dict[str, list[float]] = defaultdict(list)
    with running_lab("bench-migrate") as lab:
        rig = LibvirtRig(lab)
        rig.provider.create(spec(rig, NAME))
        rig.booted(NAME)
        guest = Guest(rig)
        for load in ("idle", "busy"):
            if load == "busy":
                written = rig.in_guest(guest.host, NAME, _BUSY).strip()
                assert written == str(48 << 20), f"the guest writes nothing: {written}"
            for trial in range(TRIALS + 1):
                found = one_move(guest)
                print(f"{load} {trial} of {TRIALS}: {found}", file=sys.stderr)
                for name, value in found.items() if trial else ():
                    figures[f"{load}_{name}"].append(value)
        rig.end()
        own = {host: str(lab.dir / "own" / host) for host in lab.hosts}
        rig = LibvirtRig(lab, directories=own)
        rig.provider.create(spec(rig, NAME))
        rig.booted(NAME)
        guest = Guest(rig)
        for trial in range(TRIALS + 1):
            disk = rig.provider._pool.store_on(guest.host).files(NAME).disk
            figures["disk_mb"].append(os.stat(disk).st_blocks * 512 / 1e6)
            found = one_move(guest)
            print(f"with disk {trial} of {TRIALS}: {found}", file=sys.stderr)
            for name, value in found.items() if trial else ():
                figures[f"disk_{name}"].append(value)
        rig.end()
    medians = {name: round(median(values), 4) for name, values in figures.items()}
    result(benchmark="migrate", trials=TRIALS, **medians)
    return 0


if __name__ == "__main__":
    sys.exit(main())
