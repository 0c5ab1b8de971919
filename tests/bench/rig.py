"""What the benchmarks on real parts share: a lab with or without a daemon, jobs, and clocks."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import backfill.lab
from backfill.drivers.store.sqlite import JournalReader
from backfill.lab import image
from backfill.lab.cluster import Lab
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import LabSpec

COUNTER = Path(backfill.lab.__file__).parent / "jobs" / "counter.sh"
_DONE = re.compile(r"^\[(?P<at>\S+)\] _job_complete: JobId=\d+ done", re.MULTILINE)
_ALLOCATED = re.compile(
    r"^\[(?P<at>\S+)\] sched(?:: Allocate|/backfill: _start_job: Started) JobId=(?P<job>\d+) ", re.MULTILINE
)


def wait_for(done: Callable[[], Any], limit_s: float, what: str, every_s: float = 0.01) -> Any:
    """Return the first true answer of `done`; TimeoutError naming `what` after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not (answer := done()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(every_s)
    return answer


class Bed:
    """One lab for measurements, with a daemon in it when `policy` is given."""

    def __init__(
        self,
        spec: LabSpec,
        policy: dict[str, Any] | Callable[[Lab], dict[str, Any]] | None = None,
        guest: image.GuestImage | None = None,
    ) -> None:
        self.lab = Lab.up(spec, tied=True)
        self.out = self.lab.shared / "out"
        self.out.mkdir()
        self._log = self.lab.dir / "daemon.log"
        self._started_s = 0.0
        self._daemon: subprocess.Popen[str] | None = None
        if policy is not None:
            body = policy(self.lab) if callable(policy) else policy
            self._start(write_policy(self.lab, guest or image.build(), **body))

    def close(self) -> None:
        """Stop the daemon and take the lab down."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGTERM)
            self._daemon.wait(10)
        self.lab.down()
        shutil.rmtree(self.lab.dir)

    def _start(self, policy: Path) -> None:
        argv = [sys.executable, "-m", "backfill", "daemon", "--config", str(policy)]
        root = str(Path(backfill.__file__).parent.parent)
        with self._log.open("w") as log:
            self._daemon = self.lab.popen("ctl", argv, stdout=log, stderr=log, env={"PYTHONPATH": root})
        wait_for(lambda: self._sees_all() or self._dead(), 30, "the daemon's first picture")

    def _dead(self) -> bool:
        if self._daemon is not None and self._daemon.poll() is not None:
            raise RuntimeError(f"the daemon ended: {self._log.read_text()[-2000:]}")
        return False

    def _sees_all(self) -> bool:
        try:
            sources = self.ask("status")["sources"]
        except OSError:
            return False
        return set(sources) >= {"slurm", *self.lab.hosts}

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """Ask the daemon over its socket."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(20)
            sock.connect(str(self.lab.daemon_socket))
            sock.sendall(json.dumps({"ask": question, **values}).encode() + b"\n")
            with sock.makefile("rb") as answer:
                found = json.loads(answer.readline())
        assert isinstance(found, dict)
        return found

    def journal(self) -> list[tuple[float, str, dict[str, Any]]]:
        """Return when each record of the daemon's journal was written, its kind and its body.

        A body lacks what has its default.
        """
        with closing(JournalReader(self.lab.dir / "daemon" / "journal.db")) as journal:
            return [(record.at_s, record.kind, record.body) for record in journal.read()]

    # --- jobs ----------------------------------------------------------------------------------

    def sbatch(self, *argv: str) -> str:
        """Submit a batch job and return its number."""
        done = self.lab.run("ctl", ["sbatch", "--parsable", "-o", "/dev/null", *argv])
        if done.returncode:
            raise RuntimeError(f"sbatch {' '.join(argv)}: {done.stderr}")
        return done.stdout.strip()

    def timed(self, *argv: str, run_s: float = 0.0) -> tuple[float, float]:
        """Run a batch job to its script's first command.

        Returns seconds from slurmctld's allocation and from sbatch's start to that command.
        """
        path = self.out / f"{time.monotonic_ns()}"
        # --wrap would make it a script of sh, which knows no $EPOCHREALTIME.
        script = path.with_suffix(".sh")
        script.write_text(f"#!/bin/bash\necho $EPOCHREALTIME >{path}\nsleep {run_s}\n")
        began_s = time.time()
        job = self.sbatch(*argv, str(script))
        started_s = float(
            wait_for(lambda: path.exists() and path.read_text().strip(), 60, f"start of job {job}")
        )
        self._started_s = started_s
        return started_s - self.allocated_s(job), started_s - began_s

    def srun(self, *argv: str) -> float:
        """Seconds from srun's start to the first command of its task."""
        began_s = time.time()
        done = self.lab.run("ctl", ["srun", *argv, "bash", "-c", "echo $EPOCHREALTIME"])
        if done.returncode:
            raise RuntimeError(f"srun {' '.join(argv)}: {done.stderr}")
        self._started_s = float(done.stdout.split()[0])
        return self._started_s - began_s

    def allocated_s(self, job: str) -> float:
        """When slurmctld gave the job its nodes, by its own log (milliseconds)."""

        def find() -> float:
            for match in _ALLOCATED.finditer(self._slurmctld_log()):
                if match["job"] == job:
                    return _epoch(match["at"])
            return 0.0

        return float(wait_for(find, 10, f"slurmctld's line about job {job}"))

    def ended_s(self) -> float:
        """When slurmctld ended the job whose start was measured last."""

        def find() -> float:
            ends = (_epoch(m["at"]) for m in _DONE.finditer(self._slurmctld_log()))
            return next((at_s for at_s in ends if at_s > self._started_s), 0.0)

        return float(wait_for(find, 30, "slurmctld's line about the end of the job"))

    def _slurmctld_log(self) -> str:
        return next(self.lab.dir.glob("machines/ctl/**/slurmctld.log")).read_text()

    def state(self, job: str) -> str:
        """The job's state, empty when Slurm has forgotten it."""
        return self.lab.run("ctl", ["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()

    def gone(self, *jobs: str) -> None:
        """Wait until none of these jobs holds anything."""
        over = {"", "COMPLETED", "CANCELLED", "FAILED"}
        wait_for(lambda: {self.state(j) for j in jobs} <= over, 60, f"end of {', '.join(jobs)}")

    def cancel(self, job: str) -> None:
        """End a job and wait for it."""
        self.lab.run("ctl", ["scancel", job])
        self.gone(job)

    def idle(self, node: str) -> None:
        """Wait until Slurm shows the node as idle."""
        wait_for(
            lambda: (
                self.lab.run("ctl", ["sinfo", "-h", "-N", "-n", node, "-o", "%T"]).stdout.split()
                in (["idle"], ["idle", "idle"])
            ),
            60,
            f"{node} idle",
        )

    # --- counting jobs in instances ------------------------------------------------------------

    def counts(self, job: str) -> list[float]:
        """Receive times of a counting job's numbers so far."""
        lines = (line.split() for line in self.lab.tally_log.read_text().splitlines())
        return [float(w[0]) for w in lines if len(w) == 7 and w[2] == job and w[4].isdigit()]

    def count_until_seen(self, *argv: str, limit_s: float = 60.0) -> str:
        """Start an endless, busy counting job in the low partition and wait for its first words."""
        path = self.out / "busy.sh"
        head, _, rest = COUNTER.read_text().partition("\n")
        path.write_text(f"{head}\n(while :; do :; done) &\n{rest}")
        job = self.sbatch("-p", "htc", *argv, str(path), "1000000", "0.02")
        wait_for(lambda: len(self.counts(job)) > 3, limit_s, f"first counts of job {job}")
        return job


def _epoch(at: str) -> float:
    """Seconds since 1970 of a time in Slurm's logs; the lab's machines live in UTC."""
    return datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()


def result(**values: Any) -> None:
    """Print the benchmark's one line of JSON, with the machine it was measured on."""
    print(json.dumps({**values, "cpus": os.cpu_count(), "load": round(os.getloadavg()[0], 2)}))
