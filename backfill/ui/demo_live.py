"""A scenario's stage on a real lab: sbatch, slurmctld's log, the tally, the daemon's journal."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

import backfill.lab
from backfill.core.cluster import Job
from backfill.core.lifecycle import Phase
from backfill.drivers.slurm.commands import Commands
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.store.sqlite import JournalReader
from backfill.lab.cluster import Lab
from backfill.lab.spec import JOB_USER, LabError
from backfill.lab.tally import check_tally
from backfill.ports.storage import Record
from backfill.sim.scenarios.rhythm import Rhythm
from backfill.sim.scenarios.scenario import FaultEntry
from backfill.sim.scenarios.stage import JobAsk

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
        self._manager = SlurmManager(Commands(prefix=tuple(lab.command("ctl", [])), bin_dir=lab.tools))
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
        """The jobs, fresh from Slurm."""
        return self._manager.read_jobs(list(self._asks)) if self._asks else {}

    def step(self, until_s: float) -> None:
        """Let real time pass."""
        time.sleep(max(0.01, until_s - time.time()))

    def records(self, after_id: int = 0) -> Iterator[Record]:
        """The daemon's journal; behind the proof of a new instance, what its guest told of it."""
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
        """What is known of the lab's clocks without its journal."""
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
        """What the counters really said, as the tally heard it."""
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

    def _ctl(self, *argv: str) -> str:
        return self._run("ctl", *argv)

    def _run(self, machine: str, *argv: str, user: str = "root") -> str:
        done = self._lab.run(machine, argv, user=user)
        if done.returncode:
            raise LabError(f"{argv[0]} on {machine} failed: {done.stderr.strip()}")
        return done.stdout.strip()


def allocations(log: str) -> dict[str, float]:
    """When each job got its nodes, by id, out of slurmctld's log with LogTimeFormat=iso8601_ms.

    Epoch seconds; the log has this machine's local time. Of a job that was requeued, the last one.
    """
    found = (_ALLOCATED.match(line) for line in log.splitlines())
    return {m["job"]: datetime.fromisoformat(m["at"]).timestamp() for m in found if m}


def guest_marks(console: str) -> list[list[str | float]]:
    """What a guest wrote of its start: each step with the seconds since its kernel began."""
    return [[m["step"], float(m["at"])] for m in _GUEST_STEP.finditer(console)]
