"""What Salt costs: a new node with and without it, of the same image, and later orders to it.

Rounds with and without Salt take turns. `salt_added_s`: from the decision to readiness, with Salt
and its gate minus without Salt: the guest has seen that all is as its states say. `open_added_s`:
the same without the gate. `seen_s`: what the guest took for that look. `heard_s`: from the
decision until its minion answers, beside the job. `nochange_s`: CPU time in the guest of an order
(`backfill provision`) that finds nothing to do: of the guest agent and what it runs, since the
minion gets no order then. `change_s`: of one that puts a file right: of the minion, and what it
takes in that time anyhow. `nochange_wall_s`, `change_wall_s`: the same by the clock. `rest_share`:
the part of the guest's CPU that its minion takes while nobody asks for anything.
Prints one line of JSON last; seconds, medians.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import backfill
from backfill.lab import image
from backfill.lab.spec import LabSpec
from tests.bench.join import Story
from tests.bench.rig import COUNTER, Bed, result, wait_for
from tests.real.salt_rig import answers, connect

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
OPEN = int(os.environ.get("BACKFILL_OPEN_TRIALS", "2"))
# The last so many of the trials wait for the minion and give orders to it: minutes in software.
RUNS = int(os.environ.get("BACKFILL_RUNS", "2"))
_PATIENCE_S = 900.0
_REST_S = 60.0
# Utime and stime of the processes of these programs and of their children that have ended, in
# hundredths of a second; a program's own name for itself may have blanks.
_CPU = (
    "sum=0; for pid in /proc/[0-9]*; do case $(readlink $pid/exe) in {}) "
    "set -- $(sed 's/.*) //' $pid/stat); "
    "sum=$((sum + ${{12}} + ${{13}} + ${{14}} + ${{15}}));; esac; done; echo $sum"
)
_MINION, _AGENT = "*/python3*", "*/qemu-ga"  # nothing else in the guest is Python


def policy(**salt: Any) -> dict[str, Any]:
    """Flavours alike in both labs; one instance at a time."""
    return {
        "scale": {"idle_s": 3, "boot_within_s": _PATIENCE_S},
        "limits": {"max_instances": 1},
        "instances": {"flavour": {"cpus": 1, "memory_mb": 384}},
        "readiness": {"salt_within_s": _PATIENCE_S},
        **({"salt": salt} if salt else {}),
    }


class Round:
    """One new node, made for a job that holds it until told."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.job = bed.sbatch("-p", "htc", str(COUNTER), "1000000", "0.2")
        wait_for(lambda: bed.counts(self.job), _PATIENCE_S, f"the first word of job {self.job}")
        story = Story(bed)
        self._s = story.decided_s()
        self.ready_s = story.ready_s() - self._s

    def in_guest(self, script: str) -> str:
        """Run a shell's words on the node, beside the job."""
        argv = ["srun", "--overlap", f"--jobid={self.job}", "bash", "-c", script]
        return self.bed.lab.run("ctl", argv, timeout_s=120).stdout.strip()

    def seen_s(self) -> float:
        """What the check of the states took in the guest; it must be the sight, not a run."""
        (node,) = self.bed.ask("nodes")["nodes"]
        (check,) = (c for c in node["checks"] if c["name"] == "salt")
        if "as the states say" not in check["sentence"]:
            raise RuntimeError(f"the states were not proven by sight: {check['sentence']}")
        return float(check["took_s"])

    def heard_s(self) -> float:
        """From the decision until the node's minion has answered the master."""
        (node,) = self.bed.ask("nodes")["nodes"]
        minion = f"{node['name']}.g{node['generation']}"
        # It is not asked before it has come for its pillar: each question would take CPU time.
        cached = self.bed.lab.dir / f"salt/cache/pillar/{minion}.p"
        wait_for(cached.exists, _PATIENCE_S, "the minion's first word to the master")
        master = connect(self.bed.lab)
        try:
            wait_for(lambda: answers(master, minion, 60.0), _PATIENCE_S, "the minion's answer")
        finally:
            master.close()
        return time.time() - self._s

    def cpu_s(self, program: str) -> float:
        """CPU time that a program has taken in the guest so far."""
        found = int(self.in_guest(_CPU.format(program))) / 100
        if not found:
            raise RuntimeError(f"no process {program} was found in the guest")
        return found

    def provision_s(self, changed: list[str], program: str) -> tuple[float, float]:
        """CPU time of that program and time by the clock of an order that changes these states."""
        before_s = self.cpu_s(program)
        env = {"PYTHONPATH": str(Path(backfill.__file__).parents[1])}
        argv = [
            sys.executable,
            "-m",
            "backfill",
            "provision",
            "vn1",
            "--json",
            "--config",
            str(self.bed.lab.dir / "policy.yaml"),
        ]
        began_s = time.monotonic()
        done = self.bed.lab.run("ctl", argv, timeout_s=2 * _PATIENCE_S, env=env)
        took_s = time.monotonic() - began_s
        told = json.loads(done.stdout)["nodes"] if done.returncode == 0 else []
        if [[state for state, _ in node["changed"]] for node in told] != [changed]:
            raise RuntimeError(f"backfill provision: {done.stdout}{done.stderr}")
        return self.cpu_s(program) - before_s, took_s

    def rest_share(self) -> float:
        """Which part of its CPU the minion takes in a minute in which nobody wants anything."""
        before_s, began_s = self.cpu_s(_MINION), time.monotonic()
        time.sleep(_REST_S)
        return (self.cpu_s(_MINION) - before_s) / (time.monotonic() - began_s)

    def orders(self) -> dict[str, float]:
        """What the node's minion costs when it is given orders."""
        heard_s = self.heard_s()
        rest = self.rest_share()
        orders = self.bed.lab.dir / "salt/cache/jobs"
        given = len(list(orders.glob("*/*/.load.p")))
        same, same_wall = self.provision_s([], _AGENT)
        if len(list(orders.glob("*/*/.load.p"))) != given:
            raise RuntimeError("the minion was asked, although the daemon can look")
        self.in_guest("echo spoilt >>/etc/security/limits.d/90-backfill.conf")
        more, more_wall = self.provision_s(["limits"], _MINION)
        return {
            "heard": heard_s,
            "rest": rest,
            "nochange": same,
            "nochange_wall": same_wall,
            "change": more,
            "change_wall": more_wall,
        }

    def end(self) -> None:
        """Let job and node go."""
        self.bed.cancel(self.job)
        wait_for(lambda: not self.bed.ask("nodes")["nodes"], 120, "the instance's removal")


Figures = dict[str, list[float]]


def with_salt(rounds: int, guest: image.GuestImage, plain: Bed | None, gate: bool, found: Figures) -> None:
    """Rounds in a lab with Salt, each after one in the `plain` lab; every figure into `found`.

    The round before the first warms the caches and counts for nothing.
    """
    name = f"bench-salt{'g' if gate else ''}-{os.getpid()}"
    bed = Bed(LabSpec(name=name, hosts=1, salt=True), policy(gate=gate, within_s=_PATIENCE_S), guest)
    try:
        for trial in range(rounds + 1):
            told: dict[str, float] = {}
            if plain is not None:
                one = Round(plain)
                one.end()
                told["plain"] = one.ready_s
            two = Round(bed)
            told["salted"] = two.ready_s
            if gate:
                told["seen"] = two.seen_s()
            if gate and trial > rounds - RUNS:
                told |= two.orders()
            two.end()
            print(f"round {trial} of {rounds}: {told}", file=sys.stderr, flush=True)
            for key, value in told.items() if trial else ():
                found[key].append(value)
    finally:
        bed.close()


def middle(values: list[float]) -> float | None:
    """The median, None of nothing."""
    return round(median(values), 3) if values else None


def more(values: list[float], without: list[float]) -> float | None:
    """The difference of the medians."""
    return round(median(values) - median(without), 3) if values and without else None


def main() -> int:
    """Take turns between a lab with Salt and one without, then leave the gate open.

    What has been measured is told, whatever ends it.
    """
    gated: Figures = defaultdict(list)
    free: Figures = defaultdict(list)
    why = ""
    try:
        guest = image.build(recipe=image.Recipe(salt=True))
        plain = Bed(LabSpec(name=f"bench-plain-{os.getpid()}", hosts=1), policy(), guest)
        try:
            with_salt(TRIALS, guest, plain, True, gated)
        finally:
            plain.close()
        if OPEN:
            with_salt(OPEN, guest, None, False, free)
    except (TimeoutError, RuntimeError) as error:
        why = str(error)
    rows = {
        "salt_added_s": more(gated["salted"], gated["plain"]),
        "nochange_s": middle(gated["nochange"]),
        "nochange_wall_s": middle(gated["nochange_wall"]),
        "change_s": middle(gated["change"]),
        "change_wall_s": middle(gated["change_wall"]),
        "seen_s": middle(gated["seen"]),
        "ready_without_s": middle(gated["plain"]),
        "ready_with_s": middle(gated["salted"]),
        "heard_s": middle(gated["heard"]),
        "rest_share": middle(gated["rest"]),
        "open_added_s": more(free["salted"], gated["plain"]),
    }
    whys = {f"why_{k}": why or "no trial of it was ordered" for k, v in rows.items() if v is None}
    result(benchmark="provision", trials=len(gated["salted"]), runs=len(gated["heard"]), **rows, **whys)
    return 0


if __name__ == "__main__":
    sys.exit(main())
