"""CPU of one whole cycle on a large cluster: Slurm's answers read, compared, taken in, planned.

Prints one line of JSON last. Slurm's tools are scripts that print texts made here: 10,000
nodes, of which 8,000 are hosts and 2,000 instances of ours at work, and 100,000 jobs, most of them
waiting.
Quiet: nothing has changed but load and time. Busy: since the last cycle 1 % of the jobs have
started or ended and 1 % of the hosts were given to other jobs. A claim: from a hook's word that one
host with an instance was given to a job to the begin of its pause; reading Slurm is no part of it.
Growth: one plan that begins an instance on each of so many idle hosts, with every limit lifted; the
same where a quota counts each waiting job by itself.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

from backfill.core.model import changes as ch
from backfill.core.model.actions import CreateInstance, DriverAction, PauseInstance
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.plan import Plan
from backfill.core.model.quantities import Resources
from backfill.core.policies.limits import Limits
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.parse import JobFormat
from backfill.drivers.slurm.reading.reader import SlurmReader
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from backfill.engine.observe import cluster_changes

HOSTS, INSTANCES, JOBS, HIGH = 8_000, 2_000, 100_000, 5_000
TRIALS = 9
SHARE = 100  # one in so many changes in a busy cycle
START_S = 1_700_000_000.0
NO_QUOTAS = Quotas()
GROWTH = (400, 800, 1600)  # no more than instances have names
NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=24 CPUAlloc={used} CPUEfctv={cpus} CPUTot={cpus} "
    "CPULoad={load:.2f} AvailableFeatures={feature} ActiveFeatures={feature} Gres=(null) "
    "NodeAddr={name} NodeHostName={name} Version=24.11.5 OS=Linux 6.1.0-32-amd64 #1 SMP "
    "PREEMPT_DYNAMIC Debian 6.1.129-1 (2025-03-06) RealMemory={memory} AllocMem=0 "
    "FreeMem={free} Sockets=2 Boards=1 State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A Partitions={partition} BootTime=1699999000 "
    "SlurmdStartTime=1699999060 LastBusyTime={busy} ResumeAfterTime=None "
    "CfgTRES=cpu={cpus},mem={memory}M,billing={cpus} AllocTRES=cpu={used} CurrentWatts=0 AveWatts=0"
)


class Site:
    """A large Slurm: who runs where, and its answers as texts."""

    def __init__(self, format_: JobFormat) -> None:
        self.now_s = START_S
        self.format = format_
        self.on_host = {f"n{i}": str(1_000_000 + i) for i in range(INSTANCES, INSTANCES + HIGH)}
        self.on_instance = {f"v{i}": str(i) for i in range(1, INSTANCES + 1)}
        self.last = INSTANCES + JOBS - INSTANCES - HIGH
        self.waiting = [str(i) for i in range(INSTANCES + 1, self.last + 1)]

    def jobs_text(self) -> str:
        """What squeue prints."""
        return "".join(self._jobs())

    def _jobs(self) -> Iterator[str]:
        for node, job in self.on_host.items():
            yield self._job(job, "batch", "RUNNING", node, 48)
        for node, job in self.on_instance.items():
            yield self._job(job, "htc", "RUNNING", node, 2)
        for job in self.waiting:
            yield self._job(job, "htc", "PENDING", "", 2)

    def _job(self, job: str, partition: str, state: str, node: str, cpus: int) -> str:
        begun = str(int(START_S)) if node else "N/A"
        fixed = (
            *(job, job, partition, state, "alice", node, "1", str(cpus), f"cpu={cpus},node=1"),
            *("0", "4294901000", str(int(START_S) - 100), str(int(START_S) - 100), begun),
            *("N/A", "1-00:00:00", "0", "(null)", "N/A", "1", "1", "OK", ""),
        )
        why = "None" if node else "Resources"
        free = ("physics", "normal", why, "", "(null)", "(null)", "(null)", "simulate.sh")
        unit, mark, end = "\x1f", f"\x1d{self.format.mark}", f"\x1e{self.format.mark}"
        return f"{unit.join(fixed)}{mark}{mark.join(free)}{end}\n"

    def nodes_text(self) -> str:
        """What scontrol prints. The load of every node differs from one time to the next."""
        return "\n".join(self._nodes()) + "\n"

    def _nodes(self) -> Iterator[str]:
        beat = int(self.now_s) % 97
        for number in range(HOSTS):
            name = f"n{number}"
            yield self._node(name, 48, 192_000, "metal", "batch", self.on_host, beat + number % 7)
        for number in range(1, INSTANCES + 1):
            yield self._node(f"v{number}", 2, 3952, "backfill", "htc", self.on_instance, beat)

    def _node(
        self, name: str, cpus: int, memory: int, feature: str, partition: str, jobs: dict[str, str], beat: int
    ) -> str:
        used = cpus if name in jobs else 0
        state = ("ALLOCATED" if used else "IDLE") + ("+DYNAMIC_NORM" if name[0] == "v" else "")
        return NODE.format(
            name=name,
            used=used,
            cpus=cpus,
            load=beat / 10,
            feature=feature,
            memory=memory,
            free=memory - 17 * beat,
            state=state,
            partition=partition,
            busy=int(self.now_s) - beat,
        )

    def stir(self, turn: int) -> None:
        """One per cent of what can happen happens."""
        for node in list(self.on_instance)[turn::SHARE]:
            self.on_instance[node] = self.waiting.pop(0)
            self.last += 1
            self.waiting.append(str(self.last))
        for node in list(self.on_host)[turn::SHARE]:
            del self.on_host[node]
        for number in range(turn, HOSTS, SHARE):
            self.on_host.setdefault(f"n{number}", str(2_000_000 + 10_000 * turn + number))


def policies() -> PolicySet:
    names = tuple(f"v{i}" for i in range(1, INSTANCES + 1))
    return PolicySet(
        cluster="large",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(
            names,
            tuple(f"10.{i >> 8}.{i & 255}.1/8" for i in range(1, INSTANCES + 1)),
            Flavour(cpus=2, memory_mb=4000),
        ),
        hosts=tuple(f"n{i}" for i in range(HOSTS)),
        limits=Limits(max_instances=INSTANCES),
    )


class Bench:
    """The daemon's cycle beside such a Slurm."""

    def __init__(self, tools: Path) -> None:
        self._tools = tools
        for tool in ("squeue", "scontrol"):
            script = tools / tool
            script.write_text(f'#!/bin/sh\ncase "$*" in *reservation*) ;; *) cat {tools}/{tool}.txt;; esac\n')
            script.chmod(0o755)
        commands = SlurmTools(bin_dir=tools)
        path = TextPath(commands)
        self._reader = SlurmReader(commands, path)
        self.site = Site(path._format)  # the mark is this process's secret
        self.world = World()
        self.begun: list[DriverAction] = []
        self.cycle = Cycle(self.world, policies(), MemoryJournal(), self._begin, lambda _: None)
        self._fill()

    def _begin(self, action: DriverAction) -> None:
        self.begun.append(action)

    def _fill(self) -> None:
        now_s = self.site.now_s
        self.cycle.tick(now_s)
        for number in range(HOSTS):
            host = Host(f"n{number}", f"n{number}", Resources(48, 192_000))
            self.cycle.take([ch.HostSeen(host, now_s), ch.SourceSeen(host.name, now_s)])
        for number in range(1, INSTANCES + 1):
            name, host_name = f"v{number}", f"n{number - 1}"
            tag = Tag("large", name, 1)
            seen = Instance(name, host_name, InstanceState.RUNNING, tag, Resources(2, 4000), 3000)
            proof = NodeProof(now_s)
            node = ManagedNode(name, f"{name}/8", host_name, 1, Phase.READY, now_s, now_s, proof=proof)
            self.cycle.take([ch.NodeManaged(node), ch.InstanceSeen(seen, now_s)])

    def pass_time(self) -> None:
        """It is two seconds later. That is not what is measured."""
        self.site.now_s += 2.0
        (self._tools / "squeue.txt").write_text(self.site.jobs_text(), encoding="utf-8")
        (self._tools / "scontrol.txt").write_text(self.site.nodes_text(), encoding="utf-8")

    def claim(self, number: int) -> float:
        """CPU seconds from a hook's word that this host was given away to the instance's pause."""
        self.site.now_s += 0.001
        self.cycle.tick(self.site.now_s)
        self.cycle.take([ch.Claimed(f"9{number}", (f"n{number}",), self.site.now_s, waiting=True)])
        before = len(self.begun)
        spent_s = cpu_s(self.cycle.decide)
        begun = [action for action in self.begun[before:] if isinstance(action, PauseInstance)]
        assert [action.host for action in begun] == [f"n{number}"], self.begun[before:]
        return spent_s

    def turn(self) -> Plan:
        """One cycle, as the daemon has it."""
        now_s = self.site.now_s
        seen = replace(self._reader.observe(), seen_s=now_s)
        self.cycle.tick(now_s)
        self.cycle.take(ch.SourceSeen(name, now_s) for name in self.world.hosts)
        self.cycle.take(cluster_changes(self.world, seen))
        return self.cycle.decide()


def cpu_s(work: Callable[[], object]) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def growth_s(count: int, quotas: Quotas = NO_QUOTAS) -> float:
    """CPU seconds of the plan for so many waiting jobs and idle hosts of one CPU each."""
    most, world = 10**6, World()
    world.apply(ch.Tick(START_S))
    for number in range(count):
        name, job = f"n{number}", str(number + 1)
        world.apply(ch.HostSeen(Host(name, name, Resources(1, 4000)), START_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.IDLE, cpus=1), START_S))
        world.apply(ch.SourceSeen(name, START_S))
        waits = Job(job, int(job), "htc", JobState.PENDING, reason="Resources")
        world.apply(ch.JobSeen(waits, START_S))
    world.apply(ch.SourceSeen("slurm", START_S))
    free = replace(policies(), hosts=tuple(world.hosts))
    free = replace(
        free,
        quotas=quotas,
        instances=replace(free.instances, flavour=Flavour(cpus=1, memory_mb=4000)),
        limits=Limits(max_instances=most, boots_at_once=most, creates_per_hour=most, max_per_host=most),
    )
    found: list[Plan] = []
    spent_s = cpu_s(lambda: found.append(plan(world, free)))
    assert sum(isinstance(action, CreateInstance) for action in found[0].actions) == count
    return spent_s


def grown(count: int, quotas: Quotas = NO_QUOTAS) -> float:
    """The median of three."""
    return round(median(growth_s(count, quotas) for _ in range(3)), 3)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        measure(Bench(Path(folder)))


def measure(bench: Bench) -> None:
    bench.pass_time()
    first_s = cpu_s(bench.turn)
    claims = [bench.claim(number) for number in range(1, 2 * TRIALS)]
    quiet, busy, begun = [], [], []
    for number in range(TRIALS):
        bench.pass_time()
        quiet.append(cpu_s(bench.turn))
        bench.site.stir(number)
        bench.pass_time()
        before = len(bench.begun)
        busy.append(cpu_s(bench.turn))
        begun.append(len(bench.begun) - before)
    row = {
        "quiet_cpu_s": round(median(quiet), 4),
        "busy_cpu_s": round(median(busy), 4),
        "first_cpu_s": round(first_s, 3),
        "claim_plan_s": round(median(claims), 5),
        "busy_actions": median(begun),
        **{f"growth_{count}_s": grown(count) for count in GROWTH},
        **{f"growth_quota_{count}_s": grown(count, Quotas((Quota(10**6),))) for count in GROWTH},
        "nodes": HOSTS + INSTANCES,
        "jobs": JOBS,
        "trials": TRIALS,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
