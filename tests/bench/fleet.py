"""Fleets of instant clones: from the order to the last member that takes jobs.

One host, all members of a fleet ready or none. `n*_s` begins as many at a time as AT_ONCE allows,
`sequential32_s` one after the other. The parent is made before (`parent_s`). Slurm-V needed
260 s one by one and 34.88 s in parallel for 32 VMs on four hosts of 24 cores. One line of JSON
comes last; seconds.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from backfill.core.fleets import FleetState
from backfill.lab.spec import LabSpec
from tests.bench.rig import Bed, result, wait_for

SIZES = tuple(int(n) for n in os.environ.get("BACKFILL_SIZES", "8,16,32").split(","))
# On two cores more at a time only wait for each other.
AT_ONCE = int(os.environ.get("BACKFILL_AT_ONCE", "4"))


def policy(at_once: int) -> dict[str, Any]:
    """Room for the largest fleet on one machine, and so many beginning at a time."""
    most = max(SIZES)
    return {
        "instances": {"names": f"vn[1-{most}]"},
        "placement": {"cpu_overcommit": float(most)},
        "cloning": {"at_once_per_host": at_once},
        "limits": {"max_instances": most, "max_per_host": most, "boots_at_once": at_once,
                   "removals_at_once": 8},
    }  # fmt: skip


def make(bed: Bed, size: int) -> dict[str, Any]:
    """Order a fleet, wait until it is ready, and let it go again; what the daemon told of it."""
    identity = bed.ask("fleet", n=size, method="instant")["id"]

    def settled() -> Any:
        (fleet,) = (f for f in bed.ask("fleets")["fleets"] if f["id"] == identity)
        return fleet if fleet["state"] in (FleetState.READY, FleetState.FAILED) else None

    fleet = wait_for(settled, 900, f"{identity} of {size}")
    if fleet["state"] != FleetState.READY:
        raise RuntimeError(f"{identity} failed: {fleet['reason']}")
    print(f"{size}: {fleet['steps_s']}, {fleet['retries']} retries", file=sys.stderr)
    bed.ask("fleet", delete=identity)
    wait_for(lambda: not bed.ask("nodes")["nodes"], 300, f"the end of {identity}")
    return dict(fleet)


def main() -> int:
    """Each size in parallel, then the largest one by one."""
    figures: dict[str, Any] = {}
    for at_once, sizes, prefix in ((AT_ONCE, SIZES, "n"), (1, SIZES[-1:], "sequential")):
        bed = Bed(LabSpec(name=f"bench-fleet-{os.getpid()}", hosts=1), policy(at_once))
        try:
            figures["parent_s"] = make(bed, 1)["steps_s"]["total"]
            for size in sizes:
                fleet = make(bed, size)
                figures[f"{prefix}{size}_s"] = fleet["steps_s"]["total"]
                figures[f"{prefix}{size}_retries"] = fleet["retries"]
        finally:
            bed.close()
    result(benchmark="fleet", at_once=AT_ONCE, **figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
