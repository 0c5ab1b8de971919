"""A real lab that plays scenarios: what it needs from this machine, its daemon, its stage."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import backfill
import backfill.lab
from backfill.core.model.cluster import Job
from backfill.core.model.lifecycle import Phase
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.store.sqlite import JournalReader
from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import JOB_USER, LabError, LabSpec
from backfill.lab.tally import check_tally
from backfill.lab.waiting import wait_until
from backfill.ports.storage import Record
from backfill.sim.scenarios.rhythm import Rhythm
from backfill.sim.scenarios.scenario import FaultEntry, Scenario
from backfill.sim.scenarios.stage import JobAsk
from backfill.ui.client import AskError, Client
from backfill.ui.commands.lab import next_steps

NAME = "demo"
_FIRST_PICTURE_S = 90.0
_STOP_S = 15.0
_TOOLS = (
    "slurmctld",
    "slurmd",
    "sbatch",
    "munged",
    "libvirtd",
    "virsh",
    "qemu-system-x86_64",
    "qemu-img",
    "unshare",
    "nsenter",
    "setpriv",
    "ip",
)
_TO_BUILD = ("mmdebstrap", "mke2fs", "cpio", "gcc", "tar")
_NAMESPACES = ("unshare", "--mount", "--net", "--uts", "--ipc", "--pid", "--fork", "true")
# What every lab has, whatever a scenario would like.
_LOW, _HIGH = "htc", "batch"


def missing(recipe: image.Recipe) -> str | None:
    """Say in a few words what this machine lacks for the real demo, or None."""
    if os.geteuid() != 0:
        return "root is missing"
    tools = list(_TOOLS) if image.find(recipe) else [*_TOOLS, *_TO_BUILD]
    absent = [tool for tool in tools if shutil.which(tool, path=SLURM_TOOLS_PATH) is None]
    if absent:
        return f"{', '.join(absent)} missing (scripts/setup.sh installs what is needed)"
    if importlib.util.find_spec("libvirt") is None:
        return "the Python module libvirt is missing (scripts/setup.sh installs it)"
    if subprocess.run(_NAMESPACES, capture_output=True, check=False).returncode:
        return "the right to make namespaces is missing (try a virtual machine of its own)"
    return None


def unfit(scenario: Scenario) -> str | None:
    """Say why a lab cannot be the scenario's cluster, or None."""
    names = scenario.host_names
    if names != tuple(f"bm{i}" for i in range(1, len(names) + 1)):
        return "the hosts of a lab are called bm1, bm2 and so on, in this order"
    if len({(group.cpus, group.memory_mb) for group in scenario.hosts}) > 1:
        return "the hosts of a lab are all equal"
    if scenario.reservations:
        return "a lab has no reservations"
    if scenario.payloads is not None:
        return "a pool with payloads is there in simulated time only"
    if scenario.faults:
        return "mishaps happen in simulated time only"
    used = {entry.partition for entry in scenario.jobs}
    priorities = scenario.policies.priorities
    if not used <= {_LOW, _HIGH} or _LOW in priorities.high or _HIGH in priorities.low:
        return f"a lab has the partitions {_LOW} (low priority) and {_HIGH} (high) only"
    return None


@contextmanager
def demo_lab(
    scenario: Scenario, tell: Callable[[str], None], *, keep: bool, release: str = roots.INSTALLED
) -> Iterator[Lab]:
    """Start a lab of this Slurm release and a daemon with the scenario's policy. Raises LabError.

    At the end the daemon is stopped and, unless it is to be kept, nothing of the lab is left.
    """
    if Lab(LabSpec(name=NAME)).status().supervisor_pid:
        raise LabError(f"the lab of a demo is up already; end it: backfill lab down --name {NAME}")
    guest = image.build(tell, image.Recipe(release))
    group = scenario.hosts[0]
    spec = LabSpec(
        name=NAME,
        hosts=len(scenario.host_names),
        cpus=group.cpus,
        memory_mb=group.memory_mb,
        hooks="slurmctld",
        slurm_version=release,
    )
    lab = Lab.up(roots.equip(spec, tell), progress=tell, tied=not keep)
    try:
        # The journal of an earlier demo would be this daemon's memory.
        shutil.rmtree(lab.dir / "daemon", ignore_errors=True)
        policy = write_policy(lab, guest, **scenario.policy_keys)
        with _daemon(lab, policy):
            tell(f"lab {spec.name}: the daemon works with {policy}")
            yield lab
    finally:
        if not keep:
            lab.down()


def kept() -> list[str]:
    """Return lines about what one can do with the lab of a demo that was left running."""
    lab = Lab.attach(NAME)
    return next_steps(lab, lab.dir / "policy.yaml")


@contextmanager
def _daemon(lab: Lab, policy: Path) -> Iterator[None]:
    argv = [sys.executable, "-m", "backfill", "daemon", "--config", str(policy)]
    root = str(Path(backfill.__file__).parents[1])
    log = lab.dir / "daemon.log"
    with log.open("w") as out:
        process = lab.popen("ctl", argv, stdout=out, stderr=out, env={"PYTHONPATH": root})
    try:
        wait_until(lambda: _sees_all(lab) or process.poll() is not None, _FIRST_PICTURE_S)
        if process.poll() is not None or not _sees_all(lab):
            said = log.read_text().strip().splitlines()
            raise LabError(f"the daemon did not start: {said[-1] if said else 'it said nothing'}")
        yield
    finally:
        _stop(lab, process)


def _sees_all(lab: Lab) -> bool:
    """Return True once the daemon has read Slurm and every host."""
    try:
        sources = Client(str(lab.daemon_socket)).ask("status")["sources"]
    except AskError:
        return False
    return all(sources.get(name, {}).get("seen_s") for name in ("slurm", *lab.hosts))


def _stop(lab: Lab, process: subprocess.Popen[str]) -> None:
    """Ask the daemon itself: a signal to `process` would only end what brought it into the lab."""
    lock = lab.dir / "daemon/daemon.lock"
    if process.poll() is None and lock.exists():
        lab.run("ctl", ["kill", f"-{signal.SIGTERM.value}", lock.read_text().strip()])
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_S)


_COUNTER = Path(backfill.lab.__file__).parent / "jobs/counter.sh"
_PRIMARY = re.compile(r"^\[(\S+)\] Running as primary controller", re.MULTILINE)
# Before it has read its SchedulerParameters, slurmctld waits for so long with its first pass.
_FIRST_PASS_S = 2.9
_ALLOCATED = re.compile(
    r"^\[(?P<at>\S+)\] sched(?:: Allocate|/backfill: _start_job: Started) JobId=(?P<job>\d+) "
)
_GUEST_STEP = re.compile(r"BACKFILL-STEP (?P<step>\w+) (?P<at>[0-9.]+)")
# bash tells the time without starting a program, so this is its script's first command.
_SCRIPT = """#!/bin/bash
echo "$EPOCHREALTIME" >{home}/{name}.new
mv {home}/{name}.new {home}/{name}.began
{work}
"""
_UNTIL_TOLD = "until [ -e {home}/{name}.finish ]; do sleep 0.1; done"


class LabStage:
    """A lab with a daemon in it; see `Stage`. Raises LabError where the lab refuses."""

    look_s = 0.4

    def __init__(self, lab: Lab, count_every_s: float) -> None:
        self._lab = lab
        self._count_every_s = count_every_s
        self._home = lab.shared / "demo"
        self._home.mkdir()
        self._home.chmod(0o1777)  # jobs, which are an ordinary user's, write there
        self._began_s = time.time()
        self._asks: dict[str, JobAsk] = {}
        self._manager = SlurmManager(SlurmTools(prefix=tuple(lab.command("ctl", [])), bin_dir=lab.tools))
        self._journal = JournalReader(lab.dir / "daemon/journal.db")

    def close(self) -> None:
        """Give back the journal."""
        self._journal.close()

    def now(self) -> float:
        """All machines of a lab have this machine's clock."""
        return time.time()

    def submit(self, ask: JobAsk) -> str:
        """sbatch."""
        script = self._home / f"{ask.name}.sh"
        argv = [str(ask.count), f"{self._count_every_s:g}"] if ask.count else []
        script.write_text(_COUNTER.read_text() if ask.count else self._script(ask))
        options = [
            "--parsable",
            "-J",
            ask.name,
            "-p",
            ask.partition,
            "-N",
            "1",
            "-n",
            str(ask.cpus),
            "-o",
            "/dev/null",
            "-D",
            "/tmp",  # noqa: S108 - exists on every machine and guest
            *(["-w", ",".join(ask.nodes)] if ask.nodes else []),
            *(["-t", f"0:{ask.limit_s:.0f}"] if ask.limit_s else []),
            *(["--mem", str(ask.memory_mb)] if ask.memory_mb else []),
        ]
        script.chmod(0o755)
        job_id = self._run("ctl", "sbatch", *options, str(script), *argv, user=JOB_USER)
        self._asks[job_id] = ask
        return job_id

    def befall(self, fault: FaultEntry) -> None:
        """Nothing happens to a lab on purpose."""
        raise LabError(f"a lab cannot have the mishap {fault.what}; play it in simulated time")

    def _script(self, ask: JobAsk) -> str:
        work = f"sleep {ask.run_s:g}" if ask.run_s else _UNTIL_TOLD
        inner = work.format(home=self._home, name=ask.name)
        return _SCRIPT.format(home=self._home, name=ask.name, work=inner)

    def finish(self, job_id: str) -> None:
        """Its script looks for this file."""
        (self._home / f"{self._asks[job_id].name}.finish").touch()

    def cancel(self, job_id: str) -> None:
        """scancel."""
        self._ctl("scancel", job_id)

    def jobs(self) -> Mapping[str, Job]:
        """Ask Slurm for the jobs."""
        return self._manager.read_jobs(list(self._asks)) if self._asks else {}

    def step(self, until_s: float) -> None:
        """Let real time pass."""
        time.sleep(max(0.01, until_s - time.time()))

    def records(self, after_id: int = 0) -> Iterator[Record]:
        """Yield the daemon's journal; behind the proof of a new instance, what its guest told of it."""
        for record in self._journal.read(after_id):
            yield record
            if record.kind == "phase" and (marks := self._marks(record)):
                yield marks

    def _marks(self, record: Record) -> Record | None:
        node = record.body.get("node")
        if not isinstance(node, dict) or node.get("phase") != Phase.READY.value:
            return None
        console = self._lab.shared / self._lab.spec.name / record.subject / "console.log"
        if not console.exists():
            return None
        marks = guest_marks(console.read_text(errors="replace"))
        body: dict[str, object] = {"generation": node["generation"], "marks": marks}
        return Record(record.at_s, "marks", record.subject, body, record.id)

    def rhythm(self) -> Rhythm:
        """Return what is known of the lab's clocks without its journal."""
        started = _PRIMARY.findall(self._slurm_log())
        started_s = datetime.fromisoformat(started[-1]).timestamp() if started else 0.0
        first_at_s = started_s + _FIRST_PASS_S - self._began_s
        return Rhythm(first_at_s=first_at_s, look_s=self.look_s)

    def _slurm_log(self) -> str:
        return (self._lab.dir / "machines/ctl/log/slurm/slurmctld.log").read_text(errors="replace")

    def start_delay_s(self, job_id: str) -> float | None:
        """From slurmctld's own log of the allocation to the script's first command."""
        began = self._home / f"{self._asks[job_id].name}.began"
        allocated_s = allocations(self._slurm_log()).get(job_id)
        if allocated_s is None or not began.exists():
            return None
        return float(began.read_text()) - allocated_s

    def complaints(self) -> list[str]:
        """Return what the counters really said, as the tally heard it."""
        lines = self._lab.tally_log.read_text().splitlines()
        names = {job_id: ask.name for job_id, ask in self._asks.items()}
        said = [f"{names.get(f.job, f'job {f.job}')}: {f.kind}: {f.detail}" for f in check_tally(lines)]
        for job_id, ask in self._asks.items():
            words = [line.split() for line in lines]
            last = max((int(w[4]) for w in words if w[2] == job_id and w[4].isdigit()), default=0)
            if last != ask.count:
                said.append(f"{ask.name}: it counted to {last} instead of {ask.count}")
        return said

    def left(self) -> list[str]:
        """Nodes that Slurm has besides the hosts, and machines that the hypervisors have."""
        found = set(self._manager.observe().nodes) - set(self._lab.hosts)
        for host in () if found else self._lab.hosts:
            found.update(self._run(host, "virsh", "-q", "list", "--all", "--name").split())
        return sorted(found)

    def payloads(self) -> None:
        """Return nothing: no scenario with a pool is played here."""

    def _ctl(self, *argv: str) -> str:
        return self._run("ctl", *argv)

    def _run(self, machine: str, *argv: str, user: str = "root") -> str:
        done = self._lab.run(machine, argv, user=user)
        if done.returncode:
            raise LabError(f"{argv[0]} on {machine} failed: {done.stderr.strip()}")
        return done.stdout.strip()


def allocations(log: str) -> dict[str, float]:
    """Read from slurmctld's log when each job got its nodes, by id; LogTimeFormat=iso8601_ms.

    Epoch seconds; the log has this machine's local time. Of a job that was requeued, the last one.
    """
    found = (_ALLOCATED.match(line) for line in log.splitlines())
    return {m["job"]: datetime.fromisoformat(m["at"]).timestamp() for m in found if m}


def guest_marks(console: str) -> list[list[str | float]]:
    """Read what a guest wrote of its start: each step with the seconds since its kernel began."""
    return [[m["step"], float(m["at"])] for m in _GUEST_STEP.finditer(console)]
