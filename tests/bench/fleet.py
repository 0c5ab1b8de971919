"""Fleets of instant clones: from the order to the last member that takes jobs.

One host, all members of a fleet ready or none. `n*_s` begins as many at a time as AT_ONCE allows,
`sequential32_s` one after the other. The parent is made before (`parent_s`). Slurm-V needed
260 s one by one and 34.88 s in parallel for 32 VMs on four hosts of 24 cores. `cpu32_s` says which
programs used most CPU time while the 32 were made. One line of JSON comes last; seconds.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from backfill.core.model.fleet import FleetState
from backfill.lab import image
from backfill.lab.cluster import Lab
from backfill.lab.policyfile import policy as lab_policy
from backfill.lab.spec import LabSpec
from tests.bench.rig import Bed, result, wait_for

SIZES = tuple(int(n) for n in os.environ.get("BACKFILL_SIZES", "8,16,32").split(","))
# On two cores more at a time only wait for each other.
AT_ONCE = int(os.environ.get("BACKFILL_AT_ONCE", "3"))
# Of this a clone has half. With less all code is translated anew in the middle of its start, which
# costs every clone more than half a second of CPU time; with it, each takes some 20 MB more.
CACHE_MB = int(os.environ.get("BACKFILL_CACHE_MB", "128"))


def policy(at_once: int, lab: Lab) -> dict[str, Any]:
    """Room for the largest fleet on one machine, and so many beginning at a time."""
    most = max(SIZES)
    hardware = lab_policy(lab, image.build())["libvirt"]["hardware"]
    return {
        "libvirt": {"hardware": {**hardware, "translation_cache_mb": CACHE_MB}},
        # Small enough for a hundred on a machine of 24 GiB.
        "instances": {"names": f"vn[1-{most}]", "flavour": {"cpus": 1, "memory_mb": 192}},
        "placement": {"cpu_overcommit": float(most)},
        "cloning": {"at_once_per_host": at_once},
        "limits": {
            "max_instances": most,
            "max_per_host": most,
            "boots_at_once": at_once,
            "removals_at_once": 8,
        },
    }


def make(bed: Bed, size: int) -> dict[str, Any]:
    """Order a fleet, wait until it is ready, and let it go again; what the daemon told of it."""
    before = cpu_s()
    ordered = bed.ask("fleet", n=size, method="instant")
    if "id" not in ordered:
        raise RuntimeError(f"no fleet of {size}: {ordered}")
    identity = ordered["id"]

    def settled() -> Any:
        (fleet,) = (f for f in bed.ask("fleets")["fleets"] if f["id"] == identity)
        return fleet if fleet["state"] in (FleetState.READY, FleetState.FAILED) else None

    # Each question costs the daemon a plan; it keeps the times itself.
    fleet = wait_for(settled, 900, f"{identity} of {size}", every_s=0.5)
    if fleet["state"] != FleetState.READY:
        raise RuntimeError(f"{identity} failed: {fleet['reason']}")
    used = dict((cpu_s() - before).most_common(6))
    print(f"{size}: {fleet['steps_s']}, {fleet['retries']} retries, CPU {used}", file=sys.stderr)
    bed.ask("fleet", delete=identity)
    wait_for(lambda: not bed.ask("nodes")["nodes"], 300, f"the end of {identity}", every_s=0.5)
    return {**fleet, "cpu_s": used}


def cpu_s() -> Counter[str]:
    """CPU time so far of all processes of this machine, by program, ended children included."""
    used: Counter[str] = Counter()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            text = stat.read_text()
            name = text[text.index("(") + 1 : text.rindex(")")]
            ticks = text[text.rindex(")") + 2 :].split()[11:15]
            used[name] += sum(map(int, ticks))
    return Counter({name: ticks // os.sysconf("SC_CLK_TCK") for name, ticks in used.items()})


def main() -> int:
    """Each size in parallel, then the largest one by one."""
    figures: dict[str, Any] = {}
    for at_once, sizes, prefix in ((AT_ONCE, SIZES, "n"), (1, SIZES[-1:], "sequential")):
        bed = Bed(LabSpec(name=f"bench-fleet-{os.getpid()}", hosts=1), partial(policy, at_once))
        try:
            figures["parent_s"] = make(bed, 1)["steps_s"]["total"]
            for size in sizes:
                fleet = make(bed, size)
                if prefix == "n":
                    figures[f"cpu{size}_s"] = fleet["cpu_s"]
                figures[f"{prefix}{size}_s"] = fleet["steps_s"]["total"]
                figures[f"{prefix}{size}_retries"] = fleet["retries"]
        finally:
            bed.close()
    result(benchmark="fleet", at_once=AT_ONCE, **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
