"""The OpenStack driver on the test cloud: decision → ACTIVE, twenty in parallel, observing 200.

Nova's driver is the fake one, so what is measured is the cloud's services and us. The many servers
that are observed are made without ports, a few requests for all: making them is not measured. The
peer asks for each server by itself, as scripts do. Prints one line of JSON last; seconds, medians.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median
from typing import Any

from backfill.core.model.fleet import InstanceSpec, InstanceState, Tag
from backfill.drivers.openstack.api.states import cluster_tag, metadata_of
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace
from backfill.lab.cloud.handle import CloudHandle
from backfill.ports.errors import DriverError
from tests.bench.rig import result, wait_for
from tests.contract.instance_rig import CLUSTER, SMALL
from tests.real.openstack_rig import IMAGE, QUICK, config, connect, nova, sweep

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
MANY = int(os.environ.get("BACKFILL_SERVERS", "200"))
PARALLEL = 20
# A cloud that hangs ends it here; what is not measured by then is null.
LIMIT_S = 720
AT_ONCE = 50  # servers of one request
KEYS = ("active_s", "parallel20_s", "observe200_s")
PLACE = {"east": CloudPlace("east")}


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


def made(provider: OpenStackProvider, numbers: range, limit_s: float) -> tuple[float, int]:
    """From the first request until all run, and how often one had to be made again.

    What fails is repeated, as the engine does it: at once refused, or later in ERROR.
    """
    began_s, again = time.monotonic(), 0
    missing = set(numbers)
    with ThreadPoolExecutor(PARALLEL) as pool:
        while missing:
            list(pool.map(lambda number: asked(provider, number), missing))
            wait_for(lambda: settled(provider, numbers), limit_s, f"{len(numbers)} servers")
            seen = provider.observe("east").instances
            ready = {n for n, i in seen.items() if i.state is InstanceState.RUNNING}
            missing = {number for number in numbers if f"vn{number}" not in ready}
            again += len(missing)
            if time.monotonic() - began_s > limit_s:
                raise TimeoutError(f"{len(missing)} of {len(numbers)} servers do not run")
    return time.monotonic() - began_s, again


def settled(provider: OpenStackProvider, numbers: range) -> bool:
    """Whether nothing is being built any more; a cloud that did not answer is asked again."""
    observed = provider.observe("east")
    ours = {f"vn{number}" for number in numbers}
    return observed.host.reachable and not any(
        i.state is InstanceState.BUILDING for n, i in observed.instances.items() if n in ours
    )


def asked(provider: OpenStackProvider, number: int) -> None:
    """Ask for one; what may succeed later is tried again by the caller."""
    try:
        provider.create(spec(number))
    except DriverError as error:
        if not error.retry:
            raise
        print(error, file=sys.stderr)


def fill(cloud: CloudHandle) -> None:
    """Many servers of ours."""
    east = connect(cloud.clouds_yaml, "east")
    flavour = east.compute.find_flavor("tiny", ignore_missing=False)
    image = east.image.find_image(IMAGE, ignore_missing=False)
    for first in range(0, MANY, AT_ONCE):
        wanted = {
            "name": f"many{first}",
            "flavorRef": flavour.id,
            "imageRef": image.id,
            "networks": "none",
            "tags": [cluster_tag(CLUSTER)],
            "metadata": metadata_of(spec(first), "tiny@"),
            "min_count": AT_ONCE,
        }
        nova(cloud.clouds_yaml, "east", "POST", "/servers", {"server": wanted})

    def here() -> bool:
        states = [server.status for server in east.compute.servers(details=True)]
        print(f"{states.count('ACTIVE')} of {MANY} servers", file=sys.stderr, flush=True)
        return len(states) == MANY and "BUILD" not in states

    wait_for(here, LIMIT_S, f"{MANY} servers", every_s=5)


def observed(cloud: CloudHandle) -> dict[str, Any]:
    """What one cycle pays for 200 servers: the first list, what has changed since, and the peer."""
    provider = OpenStackProvider(config(cloud.clouds_yaml, PLACE, patience=PATIENT))
    whole_s, whole_cpu_s = cost(lambda: provider.observe("east"))
    time.sleep(11)  # until what was made last is no longer in the overlap of two lists
    seen = len(provider.observe("east").instances)
    quiet = [cost(lambda: provider.observe("east")) for _ in range(TRIALS)]
    provider.close()
    east = connect(cloud.clouds_yaml, "east")
    ids = [server.id for server in east.compute.servers(details=False)]
    naive_s, naive_cpu_s = cost(lambda: [east.compute.get_server(one) for one in ids])
    return {
        "observe200_s": round(median(wall_s for wall_s, _ in quiet), 4),
        "observe200_cpu_s": round(median(cpu_s for _, cpu_s in quiet), 4),
        "observe200_whole_s": round(whole_s, 3),
        "observe200_whole_cpu_s": round(whole_cpu_s, 3),
        "naive200_s": round(naive_s, 3),
        "naive200_cpu_s": round(naive_cpu_s, 3),
        "servers": seen,
    }


def cost(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU time of this process."""
    began_s, spent_s = time.monotonic(), time.process_time()
    work()
    return time.monotonic() - began_s, time.process_time() - spent_s


PATIENT = replace(QUICK, act_s=300, call_s=60, full_s=3600, usage_s=60)


def measured(cloud: CloudHandle) -> Iterator[dict[str, Any]]:
    """The rows, as they become known."""
    provider = OpenStackProvider(config(cloud.clouds_yaml, PLACE, patience=PATIENT))
    one(provider, 1)
    active = [one(provider, 1) for _ in range(TRIALS)]
    yield {"active_s": round(median(active), 3), "active_worst_s": round(max(active), 3)}
    parallel, repeated = [], 0
    for _ in range(2):
        took_s, again = made(provider, range(1, PARALLEL + 1), LIMIT_S)
        parallel.append(took_s)
        repeated += again
        sweep(cloud.clouds_yaml, "east", LIMIT_S)
        yield {"parallel20_s": round(median(parallel), 3), "parallel20_made_again": repeated}
    fill(cloud)
    yield observed(cloud)
    provider.close()


def _too_late(number: int, frame: object) -> None:
    raise TimeoutError(f"the whole benchmark has taken more than {LIMIT_S} s")


def main() -> None:
    """Measure, and leave nothing; what cannot be measured in time is null and says why."""
    rows: dict[str, Any] = dict.fromkeys(KEYS)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(LIMIT_S)
    cloud = CloudHandle("bench")
    began_s = time.monotonic()
    try:
        cloud.down()
        cloud.up(tied=True)
        with cloud.network():
            for known in measured(cloud):
                rows |= known
                print(f"{time.monotonic() - began_s:.0f} s: {known}", file=sys.stderr, flush=True)
    except (TimeoutError, AssertionError, DriverError) as error:
        rows |= {f"why_{key}": str(error) for key in KEYS if rows[key] is None}
    finally:
        signal.alarm(0)
        cloud.down()
    result(benchmark="cloud", **rows, trials=TRIALS, took_s=round(time.monotonic() - began_s))


if __name__ == "__main__":
    main()
