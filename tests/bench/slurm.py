"""How long Slurm takes for nodes that come and go and for being read: each release, each way.

`make bench NAME=slurm`. All of it runs in labs of namespaces without hypervisors: a "node" is a
slurmd in its own network, so that only Slurm's part is measured. Seconds, medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

from backfill.core.model.cluster import OUR_REASON
from backfill.drivers.slurm.conf.managed import Method
from backfill.drivers.slurm.reading.json_path import JsonPath
from backfill.drivers.slurm.reading.paths import ReadPath
from backfill.drivers.slurm.reading.rest_path import RestPath
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.lab import roots
from backfill.lab.cluster import Lab
from backfill.ports.errors import DriverError
from tests.bench.rig import result, wait_for
from tests.contract.workload_rig import node, spec
from tests.real import many_jobs
from tests.real.conf_lab import ConfRig, conf_lab
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab
from tests.real.slurm_rest import slurmrestd

FEW_NODES, MANY_NODES, BATCH = 1_000, 5_000, 100
ROOM = ("MaxNodeCount=7000", *many_jobs.ROOM)
WHY_NO_PYSLURM = (
    "PyPI's pyslurm is built against Slurm 25.11's client library, which no Debian suite carries, "
    "and talks to 25.11 and 26.05 only"
)
WHY_NO_REST = "slurmrestd is not part of the set-up of Debian 12, and runs in the other roots only"


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    began_s = time.monotonic()
    work()
    return time.monotonic() - began_s


def median(work: Callable[[], object], trials: int) -> float:
    """Of so many times; rounded to a tenth of a millisecond."""
    return round(statistics.median(timed(work) for _ in range(trials)), 4)


def cloud_nodes(count: int) -> str:
    """A line of slurm.conf that defines so many nodes, each with an IP address."""
    nets = -(-count // 250)
    return f"NodeName=cl[1-{count}] NodeAddr=10.98.[0-{nets - 1}].[1-250] CPUs=4 RealMemory=1000 State=CLOUD"


def until_registered(rig: RealRig, name: str) -> None:
    """Create a node, start its slurmd and wait until Slurm can give it jobs once undrained."""
    rig.manager.create_node(spec(name))
    rig.register(spec(name))
    wait_for(lambda: node(rig, name).responding, 60, f"{name} registered")


def adding(rig: RealRig, trials: int) -> dict[str, Any]:
    """Latency of one node and of a hundred, as the driver does it and as one command."""
    manager = rig.manager
    names = [f"vn{i}" for i in range(1, trials + 1)]
    add_s, remove_s, create_s = [], [], []
    for name in names:
        add_s.append(timed(partial(until_registered, rig, name)))
        rig.stop_slurmds()
        remove_s.append(timed(partial(manager.delete_node, name)))
        create_s.append(timed(partial(manager.create_node, spec(name))))
        manager.delete_node(name)
    names = [f"vn{i}" for i in range(1, BATCH + 1)]
    listed = f"NodeName=b[1-{BATCH}]"
    made = ("CPUs=2", "RealMemory=500", "State=FUTURE", f"NodeAddr=10.77.2.[1-{BATCH}]")
    with ThreadPoolExecutor(BATCH) as pool:  # all wanted at once
        driver_s = timed(lambda: list(pool.map(manager.create_node, map(spec, names))))
        driver_remove_s = timed(lambda: list(pool.map(manager.delete_node, names)))
    return {
        "add_dynamic_s": round(statistics.median(add_s), 4),
        "create_s": round(statistics.median(create_s), 4),
        "remove_s": round(statistics.median(remove_s), 4),
        "batch100_s": round(driver_s, 4),
        "batch100_remove_s": round(driver_remove_s, 4),
        "batch100_command_s": round(timed(lambda: rig.ctl("scontrol", "create", listed, *made)), 4),
        "batch100_command_remove_s": round(timed(lambda: rig.ctl("scontrol", "delete", listed)), 4),
    }


def adding_by_conf(release: str, method: Method, trials: int) -> float:
    """Latency of one node by the managed file: edit, validate, reload, health check, slurmd."""
    with conf_lab(f"bench-{method}", release=release) as lab:
        rig = ConfRig.by(lab, method)
        add_s = []
        for trial in range(1, trials + 1):
            add_s.append(timed(partial(until_registered, rig, f"vn{trial}")))
            rig.stop_slurmds()
            rig.manager.drain(f"vn{trial}", f"{OUR_REASON} measured")
            rig.manager.delete_node(f"vn{trial}")
        return round(statistics.median(add_s), 4)


def reconfigure(release: str, trials: int) -> float:
    """`scontrol reconfigure` with 5,000 nodes, until slurmctld answers a question again."""
    extra = (*ROOM, cloud_nodes(MANY_NODES))
    with slurm_lab("bench-many", release=release, extra_conf=extra) as lab:

        def once() -> None:
            lab.run("ctl", ["scontrol", "reconfigure"], check=True)
            wait_for(lambda: _answers(lab), 60, "slurmctld after the reconfigure")

        return median(once, trials)


def _answers(lab: Lab) -> bool:
    shown = lab.run("ctl", ["scontrol", "show", "node", "bm1", "-o"])
    return shown.returncode == 0 and shown.stdout.startswith("NodeName=bm1")


@contextmanager
def paths(lab: Lab, release: str) -> Iterator[dict[str, ReadPath]]:
    """Every way of reading that this release has here."""
    commands = commands_of(lab, timeout_s=120)
    ways: dict[str, ReadPath] = {"text": TextPath(commands), "json": JsonPath(commands)}
    if release not in roots.SUITES:
        yield ways
        return
    with slurmrestd(lab) as restd:
        yield {**ways, "rest": RestPath(commands, restd.socket)}


def polling(release: str, trials: int) -> dict[str, Any]:
    """What one look at everything costs, by way of reading, without jobs and with 10,000."""
    found: dict[str, Any] = {}
    extra = (*ROOM, cloud_nodes(FEW_NODES))
    with slurm_lab("bench-poll", release=release, extra_conf=extra) as lab, paths(lab, release) as ways:
        for name, way in ways.items():
            found[f"nodes1000_{name}_s"] = median(way.everything, trials)
        many_jobs.fill(lab)
        for name, way in ways.items():
            found[f"poll10000_{name}_s"] = _or_why(found, f"poll10000_{name}_s", way, trials)
    found["poll10000_s"] = found["poll10000_text_s"]
    for key in ("poll10000_rest_s", "nodes1000_rest_s"):
        if key not in found:
            found |= {key: None, f"why_{key}": WHY_NO_REST}
    for key in ("poll10000_pyslurm_s", "nodes1000_pyslurm_s"):
        found |= {key: None, f"why_{key}": WHY_NO_PYSLURM}
    return found


def _or_why(found: dict[str, Any], key: str, way: ReadPath, trials: int) -> float | None:
    try:
        return median(way.everything, trials)
    except DriverError as error:
        found[f"why_{key}"] = str(error)
        return None


def measure(release: str, trials: int) -> dict[str, Any]:
    """Everything about one release."""
    tell(f"Slurm {release}: nodes that come and go")
    with slurm_lab("bench-add", release=release, extra_conf=ROOM) as lab:
        found = adding(RealRig.of(lab), trials)
    tell(f"Slurm {release}: nodes by the managed file")
    found["add_conf_s"] = adding_by_conf(release, Method.CONF, trials)
    tell(f"Slurm {release}: reconfigure with {MANY_NODES} nodes")
    found["reconfigure5000_s"] = reconfigure(release, trials)
    tell(f"Slurm {release}: reading with {many_jobs.JOBS} jobs and {FEW_NODES} nodes")
    return {**found, **polling(release, trials)}


def tell(line: str) -> None:
    """Progress, for people."""
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    """Measure the releases that are asked for and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("releases", nargs="*", default=roots.RELEASES, metavar="RELEASE")
    args = parser.parse_args()
    found = {release: measure(release, args.trials) for release in args.releases}
    result(**found, trials=args.trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
