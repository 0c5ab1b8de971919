"""The OpenStack driver on the test cloud: decision → ACTIVE, twenty in parallel, observing 200.

Nova's driver is the fake one, so what is measured is the cloud's services and us. Prints one line
of JSON last; seconds, medians.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

from backfill.core.fleet import InstanceSpec, InstanceState, Tag
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import Place
from backfill.lab.cloud.handle import Cloud
from backfill.ports import DriverError
from tests.bench.rig import result, wait_for
from tests.contract.instance_rig import CLUSTER, SMALL
from tests.real.openstack_rig import IMAGE, QUICK, config, sweep

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "10"))
MANY = int(os.environ.get("BACKFILL_SERVERS", "200"))
PARALLEL = 20
PLACE = {"east": Place("east")}


def spec(number: int) -> InstanceSpec:
    name = f"vn{number}"
    tag = Tag(CLUSTER, name, 1)
    return InstanceSpec(name, "east", tag, SMALL, IMAGE, f"10.77.{number // 200}.{number % 200}/16")


def running(provider: OpenStackProvider, names: set[str]) -> bool:
    seen = provider.observe("east").instances
    return all(n in seen and seen[n].state is InstanceState.RUNNING for n in names)


def one(provider: OpenStackProvider, number: int) -> float:
    """From the decision until it is seen running."""
    began_s = time.monotonic()
    provider.create(spec(number))
    wait_for(lambda: running(provider, {f"vn{number}"}), 120, "ACTIVE")
    took_s = time.monotonic() - began_s
    provider.delete("east", f"vn{number}")
    return took_s


def made(provider: OpenStackProvider, numbers: range, limit_s: float) -> float:
    """From the first request until all run; what fails is repeated, as the engine does it."""
    began_s = time.monotonic()
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda number: insist(provider, number), numbers))
    names = {f"vn{number}" for number in numbers}
    wait_for(lambda: running(provider, names), limit_s, f"{len(names)} servers")
    return time.monotonic() - began_s


def insist(provider: OpenStackProvider, number: int) -> None:
    for attempt in range(5):
        try:
            provider.create(spec(number))
        except DriverError:
            if attempt == 4:
                raise
        else:
            return


def observed(cloud: Cloud) -> dict[str, Any]:
    """What one cycle pays for 200 servers: the first list, and what has changed since."""
    provider = OpenStackProvider(config(cloud.clouds_yaml, PLACE, patience=PATIENT))
    began_s, spent_s = time.monotonic(), time.process_time()
    provider.observe("east")
    whole_s, whole_cpu_s = time.monotonic() - began_s, time.process_time() - spent_s
    time.sleep(11)  # until what was made last is no longer in the overlap of two lists
    provider.observe("east")
    walls, cpus = [], []
    for _ in range(TRIALS):
        began_s, spent_s = time.monotonic(), time.process_time()
        provider.observe("east")
        walls.append(time.monotonic() - began_s)
        cpus.append(time.process_time() - spent_s)
    provider.close()
    return {
        "observe200_s": round(median(walls), 4),
        "observe200_cpu_s": round(median(cpus), 4),
        "observe200_whole_s": round(whole_s, 3),
        "observe200_whole_cpu_s": round(whole_cpu_s, 3),
    }


PATIENT = replace(QUICK, act_s=300, call_s=60, full_s=3600, usage_s=60)


def main() -> None:
    """Measure, and leave the cloud empty."""
    cloud = Cloud("bench")
    cloud.down()
    cloud.up(tied=True)
    try:
        with cloud.network():
            provider = OpenStackProvider(config(cloud.clouds_yaml, PLACE, patience=PATIENT))
            one(provider, 1)
            active = [one(provider, 1) for _ in range(TRIALS)]
            parallel = []
            for _ in range(max(1, TRIALS // 5)):
                parallel.append(made(provider, range(1, PARALLEL + 1), 300))
                sweep(cloud.clouds_yaml, "east")
            made(provider, range(1, MANY + 1), 1200)
            seen = observed(cloud)
            provider.close()
    finally:
        cloud.down()
    result(
        benchmark="cloud",
        active_s=round(median(active), 3),
        parallel20_s=round(median(parallel), 3),
        **seen,
        servers=MANY,
        trials=TRIALS,
    )


if __name__ == "__main__":
    main()
