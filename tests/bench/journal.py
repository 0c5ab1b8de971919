"""How fast the journal grows on a large busy site: a simulated day, of which some hours are played.

10,000 jobs of another partition wait, with priorities that are recalculated every 5 min; 20,000
low-priority jobs a day are submitted, run and end, on 2,000 instances on 500 hosts, all at work.
The pictures are made up; what compares, decides and writes is the daemon's own. Prints one line of
JSON last; `mb_per_day` is that of the file with all that belongs to it, 10^6 bytes.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.quantities import Resources
from backfill.core.policies.limits import Limits
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.world import World
from backfill.drivers.store.codec import dump, pack
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.engine.cycle import Cycle
from backfill.engine.observe import cluster_changes, host_changes
from backfill.ports.provider import HostObservation
from backfill.ports.workload import ClusterObservation
from tests.bench.rig import result

HOURS = float(os.environ.get("BACKFILL_HOURS", "1"))
WAITING, A_DAY, HOSTS, PER_HOST = 10_000, 20_000, 500, 4
_POLL_S, _HOST_POLL_S, _PRIORITIES_S, _KEPT_S = 2, 5, 300, 300
_ROW = 35  # bytes of a row and its place in the index, beside the texts
_START_S = 1_700_000_000.25


@dataclass
class Site:
    """What Slurm and the hosts would show, second by second."""

    dice: random.Random
    nodes: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    hosts: dict[str, Host] = field(default_factory=dict)
    instances: dict[str, dict[str, Instance]] = field(default_factory=dict)
    number: int = 1_000_000
    ended: list[tuple[float, str]] = field(default_factory=list)
    owed: float = 0.0
    working: dict[str, str] = field(default_factory=dict)  # our nodes and the jobs on them
    leaving: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for n in range(HOSTS):
            host, node = f"bm{n:03}", f"cn{n:03}"
            self.hosts[host] = Host(host, node, Resources(16, 64000), busy=0.9)
            self.nodes[node] = Node(
                node,
                NodeBase.IDLE,
                address=f"10.1.{n // 250}.{n % 250}",
                cpus=16,
                memory_mb=64000,
                partitions=("batch",),
                features=("metal",),
                boot_time_s=_START_S - 9e5,
                slurmd_start_s=_START_S - 9e5,
            )
            self.instances[host] = {}
            for k in range(PER_HOST):
                name = f"vn{n * PER_HOST + k + 1}"
                self.instances[host][name] = Instance(
                    name,
                    host,
                    InstanceState.RUNNING,
                    Tag("site", name, 3),
                    Resources(4, 8000),
                    6000,
                    _START_S - 8e4,
                )
                self.nodes[name] = Node(
                    name,
                    NodeBase.IDLE,
                    frozenset({"DYNAMIC_NORM"}),
                    address=f"10.77.{n // 50}.{k}",
                    cpus=4,
                    memory_mb=7952,
                    partitions=("htc",),
                    features=("backfill",),
                    boot_time_s=_START_S - 8e4,
                    slurmd_start_s=_START_S - 8e4,
                )
                self.start(name, self.submit())
        for _ in range(WAITING):
            job = self.submit()
            self.jobs[job] = replace(
                self.jobs[job],
                partition="batch",
                user="alice",
                account="physics",
                priority=4000,
                num_nodes=8,
                cpus=128,
                memory_mb=32000,
                reason="Priority",
                name="lattice_run_17",
            )

    def submit(self, now_s: float = _START_S) -> str:
        self.number += 1
        job = str(self.number)
        self.jobs[job] = Job(
            job,
            self.number,
            "htc",
            JobState.PENDING,
            qos="normal",
            user="osg",
            account="osg",
            name=f"glidein_{self.number}",
            cpus=4,
            memory_mb=7000,
            priority=1000,
            submit_s=now_s,
            eligible_s=now_s,
            time_limit_s=86400.0,
        )
        return job

    def start(self, name: str, job: str, now_s: float = _START_S) -> None:
        self.working[name] = job
        self.jobs[job] = replace(
            self.jobs[job], state=JobState.RUNNING, nodes=(name,), start_s=now_s, reason="None"
        )
        self.nodes[name] = replace(
            self.nodes[name], base=NodeBase.ALLOCATED, cpus_allocated=4, flags=frozenset({"DYNAMIC_NORM"})
        )

    def poll(self, now_s: float) -> ClusterObservation:
        """What happened within one poll: jobs go from step to step, one in each."""
        while self.idle and self.fresh:
            self.start(self.idle.pop(), self.fresh.pop(), now_s)
        for job in self.leaving:
            self.jobs[job] = replace(self.jobs[job], flags=frozenset())
            self.ended.append((now_s, job))
            name = self.jobs[job].nodes[0]
            self.nodes[name] = replace(
                self.nodes[name], base=NodeBase.IDLE, cpus_allocated=0, flags=frozenset({"DYNAMIC_NORM"})
            )
            self.idle.append(name)
        self.leaving.clear()
        self.owed += A_DAY / 86400 * _POLL_S
        while self.owed >= 1:
            self.owed -= 1
            self.end()
            self.fresh.append(self.submit(now_s))
        while self.ended and now_s - self.ended[0][0] > _KEPT_S:
            del self.jobs[self.ended.pop(0)[1]]
        if int(now_s - _START_S) % _PRIORITIES_S == 0:
            for one in [j for j in self.jobs.values() if j.state is JobState.PENDING]:
                self.jobs[one.id] = replace(one, priority=one.priority + 1)
        return ClusterObservation(now_s - 0.3217, dict(self.nodes), dict(self.jobs))

    def end(self) -> None:
        """One of the running jobs begins to end."""
        running = [name for name in self.working if "COMPLETING" not in self.nodes[name].flags]
        name = self.dice.choice(running)
        job = self.working.pop(name)
        self.jobs[job] = replace(self.jobs[job], state=JobState.COMPLETED, flags=frozenset({"COMPLETING"}))
        flags = frozenset({"DYNAMIC_NORM", "COMPLETING"})
        self.nodes[name] = replace(self.nodes[name], flags=flags)
        self.leaving.append(job)

    def host(self, name: str, now_s: float) -> HostObservation:
        """A host as it is read: its load goes with the jobs, and a little by itself."""
        at_work = sum(self.nodes[n].base is NodeBase.ALLOCATED for n in self.instances[name])
        busy = 0.9 * at_work / PER_HOST + self.dice.uniform(0, 0.05)
        self.hosts[name] = replace(self.hosts[name], busy=busy)
        return HostObservation(now_s - 0.0123, self.hosts[name], self.instances[name])


def _policies() -> PolicySet:
    names = tuple(f"vn{n + 1}" for n in range(HOSTS * PER_HOST))
    addresses = tuple(f"10.77.{n // 200}.{n % 200 + 1}/16" for n in range(HOSTS * PER_HOST))
    return PolicySet(
        cluster="site",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(names, addresses, Flavour(cpus=4, memory_mb=8000)),
        hosts=tuple(f"bm{n:03}" for n in range(HOSTS)),
        limits=Limits(max_instances=HOSTS * PER_HOST),
    )


def _ready(site: Site) -> Iterator[ch.Change]:
    """The records of instances that have been at work for long."""
    for host, there in site.instances.items():
        for name in there:
            yield ch.NodeManaged(
                ManagedNode(
                    name,
                    site.nodes[name].address + "/16",
                    host,
                    3,
                    Phase.READY,
                    _START_S - 7e4,
                    _START_S - 8e4,
                    reason="it has proven itself",
                    proof=NodeProof(_START_S - 7e4),
                )
            )


def _size(path: Path) -> int:
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()  # its log is used again and again
    db.close()
    return sum(file.stat().st_size for file in path.parent.iterdir())


def _turn(cycle: Cycle, site: Site, hosts: list[str], second: int) -> float:
    """One second of the daemon's work; returns the CPU time of its own thread."""
    now_s = _START_S + second
    seen = site.poll(now_s) if second % _POLL_S == 0 else None
    read = [site.host(name, now_s) for name in hosts[second % _HOST_POLL_S :: _HOST_POLL_S]]
    began_s = time.process_time()
    cycle.tick(now_s)
    if seen is not None:
        cycle.take(cluster_changes(cycle.world, seen))
    for one in read:
        cycle.take(host_changes(cycle.world, one))
    cycle.decide()
    return time.process_time() - began_s


def _begun(cycle: Cycle, site: Site, hosts: list[str]) -> None:
    """The daemon's start, which is no part of the day."""
    cycle.tick(_START_S)
    for name in hosts:
        cycle.take(host_changes(cycle.world, site.host(name, _START_S)))
    cycle.take(_ready(site))
    cycle.take(cluster_changes(cycle.world, site.poll(_START_S)))
    cycle.decide()


def main() -> int:
    """Play some hours and reckon what a day makes."""
    logging.disable(logging.CRITICAL)
    site = Site(random.Random(16))
    hosts = list(site.hosts)
    kinds: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "journal.db"
        journal = SqliteJournal(path)
        cycle = Cycle(World(), _policies(), journal, lambda action: None, lambda answer: None)
        _begun(cycle, site, hosts)
        first, begun = _size(path), max(r.id for r in journal.read())
        cpu_s = sum(_turn(cycle, site, hosts, s) for s in range(1, int(3600 * HOURS) + 1))
        grown = _size(path) - first
        for record in journal.read(after_id=begun):
            size = len(pack(dump(record.body))) + len(record.kind) + 2 * len(record.subject)
            kinds[str(record.body.get("t", record.kind))] += size + _ROW
        journal.close()
        began_s = time.perf_counter()
        SqliteJournal(path).close()
        open_s = time.perf_counter() - began_s
    scale = 24 / HOURS
    result(
        benchmark="journal",
        trials=1,
        hours=HOURS,
        mb_per_day=round(grown * scale / 1e6, 1),
        start_mb=round(first / 1e6, 2),
        kinds_mb={kind: round(size * scale / 1e6, 2) for kind, size in kinds.most_common(9)},
        thread_cpu_s_per_day=round(cpu_s * scale, 1),
        open_s=round(open_s, 2),
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
