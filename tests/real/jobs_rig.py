"""Jobs of a lab as the scenario tests need them: counters, jobs that last until told, the tally."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import backfill.lab
from backfill.core.model.cluster import ENDED
from backfill.drivers.slurm.registration import never_comes
from backfill.lab.cluster import Lab
from backfill.lab.spec import JOB_USER
from backfill.lab.tally import check_tally
from backfill.lab.waiting import wait_until

COUNTER = Path(backfill.lab.__file__).parent / "jobs" / "counter.sh"
PERIOD_S = 0.05
# Only a test that fails waits so long.
LIMIT_S = 600.0
_POLL_S = 0.05
# How many words of a job may be on their way to the tally when its guest is stopped, and for how
# long on a machine that has a lot to do; a guest that is not stopped says ten in that time.
_ON_THEIR_WAY, _ON_THEIR_WAY_S = 2, 0.5
_UNTIL_TOLD = """#!/bin/bash
echo $EPOCHREALTIME >{home}/$SLURM_JOB_ID.new && mv {home}/$SLURM_JOB_ID.new {home}/$SLURM_JOB_ID.on
until [ -e {home}/$SLURM_JOB_ID.go ]; do sleep 0.05; done
"""
ENDS = tuple(state.value for state in ENDED)
_Answer = TypeVar("_Answer")


class JobsRig:
    """Submits jobs to a lab, watches them, and knows what they said."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self._home = lab.shared / "jobs"
        self._home.mkdir()
        self._home.chmod(0o1777)  # jobs, which are an ordinary user's, write there
        self._script = self._write("until-told.sh", _UNTIL_TOLD.format(home=self._home))
        # The counting job, made endless: it says `end` soon after it was told that it is enough.
        head, _, rest = COUNTER.read_text().partition("\n")
        self._counter = self._write("counter.sh", f"{head}\ntrap 'count=$i' USR1\n{rest}")
        self._wholes: set[str] = set()
        self._began_s = time.time()

    def _write(self, name: str, text: str) -> str:
        path = self._home / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    # --- waiting -------------------------------------------------------------------------------

    def until(self, holds: Callable[[], _Answer], limit_s: float = LIMIT_S, what: str = "") -> _Answer:
        """Poll until `holds` answers something true and return it; fail with the whole picture."""
        if not (answer := wait_until(holds, limit_s, _POLL_S)):
            raise AssertionError(f"{what or 'it'}: not within {limit_s:g} s\n{self.picture()}")
        return answer

    def picture(self) -> str:
        """What Slurm shows now, for a test that failed."""
        nodes = self.ctl("sinfo", "-N", "-o", "%n %P %T %E", check=False)
        return f"{self.ctl('squeue', check=False)}\n{nodes}"

    # --- submitting ----------------------------------------------------------------------------

    def ctl(self, *argv: str, check: bool = True) -> str:
        """Run a command on the controller and return what it wrote."""
        return self.lab.run("ctl", argv, check=check).stdout.strip()

    def user(self, *argv: str, check: bool = True) -> str:
        """The same as an ordinary user of the cluster."""
        return self.lab.run("ctl", argv, check=check, user=JOB_USER).stdout.strip()

    def submit(self, *argv: str) -> str:
        """sbatch; returns the job's number."""
        return self.user("sbatch", "--parsable", "-o", "/dev/null", "-D", "/tmp", *argv)

    def low(self, *argv: str, start: bool = True, period_s: float = PERIOD_S, count: int = 1_000_000) -> str:
        """Submit a low-priority job that counts, so far or until `finish`; with `start`, wait for words."""
        job = self.submit("-p", "htc", *argv, self._counter, str(count), str(period_s))
        if start:
            self.counting(job)
        return job

    def high(self, host: str, *argv: str, start: bool = True) -> str:
        """Submit a job that holds `host` until `release`; with `start`, wait for its script."""
        job = self.submit("-p", "batch", "-w", host, *argv, self._script)
        if start:
            self.started(job)
        return job

    def interactive(self, tool: str, host: str) -> tuple[float, float]:
        """Run a short command through srun or salloc; when it began and when it ended."""
        command = ["bash", "-c", "echo $EPOCHREALTIME; sleep 1; echo $EPOCHREALTIME"]
        argv = [tool, "-p", "batch", "-w", host, *command]
        done = self.lab.run("ctl", argv, check=True, user=JOB_USER)
        began, ended = done.stdout.split()
        return float(began), float(ended)

    def started(self, job: str, limit_s: float = LIMIT_S) -> float:
        """When the script of a job from `high` began, epoch seconds; waits for it."""
        path = self._home / f"{job}.on"
        self.until(path.exists, limit_s, f"start of job {job}")
        return float(path.read_text())

    def has_started(self, job: str) -> bool:
        """Whether the script of a job from `high` has begun."""
        return (self._home / f"{job}.on").exists()

    def release(self, *jobs: str) -> float:
        """Let jobs from `high` end, and wait until they have; returns when they were told."""
        told_s = time.time()
        for job in jobs:
            (self._home / f"{job}.go").touch()
        self.completed(*jobs)
        return told_s

    def completed(self, *jobs: str) -> None:
        """Wait until jobs have come to their end."""
        for job in jobs:
            self.until(partial(self._completed, job), what=f"end of job {job}")

    def _completed(self, job: str) -> bool:
        return self.state(job) == "COMPLETED"

    def cancel(self, *jobs: str) -> None:
        """scancel, without waiting."""
        self.ctl("scancel", *jobs)

    # --- looking -------------------------------------------------------------------------------

    def show(self, job: str) -> dict[str, str]:
        """What `scontrol show job` says, by key."""
        # Of an array every task is shown, of which one has the number that was asked for.
        for line in self.ctl("scontrol", "-o", "show", "job", job).splitlines():
            shown = {key: value for key, _, value in (w.partition("=") for w in line.split())}
            if shown["JobId"] == job:
                return shown
        raise AssertionError(f"Slurm does not show job {job}\n{self.picture()}")

    def state(self, job: str) -> str:
        """The job's state, such as RUNNING."""
        return self.show(job)["JobState"]

    def ended(self, job: str) -> str:
        """Wait for the end of a job, and return the state that it ended in."""
        # Of words that mean that it is not over there are more, such as CONFIGURING.
        self.until(lambda: self.state(job) in ENDS, what=f"the end of job {job}")
        return self.state(job)

    def node_states(self) -> dict[str, str]:
        """Every node that Slurm shows, with its state."""
        lines = self.ctl("scontrol", "-F", "-o", "show", "node").splitlines()
        words = (dict(w.partition("=")[::2] for w in line.split()) for line in lines)
        return {w["NodeName"]: w["State"] for w in words if not never_comes(w["NodeName"])}

    # --- on hosts and in guests, behind the backs of the daemon and of Slurm ----------------------

    def virsh(self, host: str, *argv: str) -> str:
        """Run virsh on a host."""
        return self.lab.run(host, ["virsh", "-q", *argv], check=True).stdout.strip()

    def in_guest(self, host: str, name: str, path: str, *argv: str) -> None:
        """Start a program in a guest, behind the backs of the daemon and of Slurm."""
        arguments = {"path": path, "arg": list(argv)}
        request = json.dumps({"execute": "guest-exec", "arguments": arguments})
        self.virsh(host, "qemu-agent-command", name, request)

    def out_of_guest(self, host: str, name: str, script: str) -> str:
        """What a shell script writes in a guest, behind the backs of the daemon and of Slurm."""
        found = f"PATH=/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin; {script}"
        words = {"path": "/bin/sh", "arg": ["-c", found], "capture-output": True}
        pid = self._ask_agent(host, name, "guest-exec", words)["pid"]

        def ended() -> dict[str, Any]:
            told = self._ask_agent(host, name, "guest-exec-status", {"pid": pid})
            return told if told["exited"] else {}

        told = self.until(ended, what=f"the end of {script!r} in {name}")
        assert told["exitcode"] == 0, told
        return base64.b64decode(told.get("out-data", "")).decode()

    def _ask_agent(self, host: str, name: str, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        request = json.dumps({"execute": command, "arguments": arguments})
        answer = json.loads(self.virsh(host, "qemu-agent-command", name, request))
        return dict(answer["return"])

    # --- what the counting jobs said -----------------------------------------------------------

    def tally(self, job: str = "") -> list[str]:
        """The tally's lines since this test began, of one job or of all."""
        lines = self.lab.tally_log.read_text().splitlines()
        mine = (line for line in lines if float(line.split()[0]) >= self._began_s)
        return [line for line in mine if not job or line.split()[2] == job]

    def words_at_s(self, job: str) -> list[float]:
        """When the words of a job arrived, epoch seconds."""
        return [float(line.split()[0]) for line in self.tally(job)]

    def counting(self, job: str, more: int = 3, limit_s: float = LIMIT_S) -> float:
        """Wait for `more` new words of the job; returns when the first of them arrived."""
        before = len(self.tally(job))
        self.until(lambda: len(self.tally(job)) >= before + more, limit_s, f"words of counting job {job}")
        return self.words_at_s(job)[before]

    def longest_silence_s(self, job: str) -> float:
        """The longest time between two words of a job."""
        at_s = self.words_at_s(job)
        return max(b - a for a, b in pairwise(at_s))

    def assert_silent(self, job: str, from_s: float, to_s: float) -> None:
        """No word of the job was said in this time: its instance did not run."""
        after_s = [at_s - from_s for at_s in self.words_at_s(job) if from_s < at_s < to_s]
        quiet = len(after_s) <= _ON_THEIR_WAY and max(after_s, default=0.0) < _ON_THEIR_WAY_S
        assert quiet, f"job {job} spoke {after_s} s after it had to stand still\n{self.picture()}"

    def finish(self, *jobs: str) -> None:
        """Let counting jobs end and wait for it; the tally must then show each of them whole."""
        for job in jobs:
            self.counting(job)
            self.until(partial(self._has_ended, job), what=f"end of job {job}")
            self._wholes.add(job)

    def _has_ended(self, job: str) -> bool:
        if self.state(job) == "COMPLETED":
            return True
        # slurmd drops a signal while it is still busy with a suspend, so it is sent until heard.
        self.ctl("scancel", "--batch", "--signal=USR1", job, check=False)
        return False

    def judge_tally(self) -> list[str]:
        """Everything wrong with what this test's counting jobs said.

        Only of jobs that were seen to finish an end is asked; the others were cancelled.
        """
        return [
            f"job {f.job}: {f.kind}: {f.detail}"
            for f in check_tally(self.tally())
            if f.kind != "never ended" or f.job in self._wholes
        ]
