"""A job's own machine: from sbatch to the script's first line in a machine that is made for it.

Instant, linked and full clones and a machine that was there, in turn, in one lab and one run. Each start is
broken down in the steps of Slurm-V and Multiverse: submission (until the daemon has taken the job in
and held it), image transfer and creation (the call that makes the instance), boot (until Slurm knows its
slurmd), propagation (proof, pin, opened), release (until the script's first line).
Prints one line of JSON last; seconds, medians.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from statistics import median, quantiles
from typing import Any

from backfill.lab import image
from backfill.lab.cluster import Lab
from backfill.lab.policyfile import policy
from backfill.lab.spec import LabSpec
from tests.bench.rig import COUNTER, Bed, result, wait_for

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "7"))
_KINDS = ("instant", "linked", "full")
_LIMIT_S = 600.0


def _policy(lab: Lab) -> dict[str, Any]:
    """Three images of the same files, each with its way of cloning, and one machine that is kept."""
    good = policy(lab, image.build())["libvirt"]["images"]["default"]
    ways: dict[str, Any] = {kind: {**good, "method": kind} for kind in _KINDS}
    ways["instant"]["warm_parents"] = 1
    return {
        "libvirt": {"images": {"default": good, **ways}},
        "own_machines": {"enabled": True, "start_within_s": _LIMIT_S},
        "scale": {"warm": 1, "idle_s": 600, "boot_within_s": _LIMIT_S},
        "limits": {"max_per_host": 4},
        "placement": {"cpu_overcommit": 2},
        "daemon": {"poll_s": 0.25, "host_poll_s": 1},
        "readiness": {"clock_within_s": 60, "munge_within_s": 60, "address_within_s": 60},
    }


class Start:
    """When each thing happened to one job's own machine, by the daemon's journal."""

    def __init__(self, bed: Bed, job: str) -> None:
        self._rows = bed.journal()
        self._job = job
        self._node = next(b["node"] for _, _, b in self._rows if self._is_its_node(b))

    def _is_its_node(self, body: dict[str, Any]) -> bool:
        return body.get("t") == "SetNode" and body["node"].get("job") == self._job

    def became_s(self, state: str) -> float:
        """When its machines were so far."""
        mine = ((at_s, b["machines"]) for at_s, _, b in self._rows if b.get("t") == "SetMachines")
        return float(min(at_s for at_s, own in mine if own["job"] == self._job and own["state"] == state))

    def outcome_s(self, call: str) -> float:
        """When the call of this name about its node ended."""
        key = f"{call}:{self._node['name']}:{self._node['generation']}"
        ends = (at_s for at_s, kind, b in self._rows if kind == "outcome" and b["key"].startswith(key))
        return float(min(ends))

    def registered_s(self) -> float:
        """When Slurm first showed its node as registered."""
        since_s = self.became_s("spawning")
        seen = ((at_s, b["node"]) for at_s, _, b in self._rows if b.get("t") == "NodeSeen")
        mine = ((at_s, n) for at_s, n in seen if n["name"] == self._node["name"] and at_s > since_s)
        return float(min(at_s for at_s, node in mine if node.get("slurmd_start_s", 0) > 0))


def _submit(bed: Bed, *argv: str, word: str = "") -> tuple[str, float, float]:
    """Submit a job; its number, when sbatch was called, and when the script's first line ran."""
    began_s = time.time()
    job = bed.sbatch("-p", "htc", *argv, str(COUNTER), "1", "0.01")
    if word:
        bed.lab.run("ctl", ["scontrol", "update", f"JobId={job}", f"AdminComment={word}"], check=True)
    wait_for(lambda: bed.counts(job), _LIMIT_S, f"first line of job {job}")
    return job, began_s, bed.counts(job)[0]


def _own(bed: Bed, kind: str) -> dict[str, float]:
    # As job_submit.lua leaves it: else a machine that is there may take it before the daemon holds it.
    job, began_s, first_s = _submit(bed, "--hold", word=f"backfill-vm:image={kind},held=1")
    start = Start(bed, job)
    queued_s, created_s = start.became_s("spawning"), start.outcome_s("CreateInstance")
    registered_s, spawned_s = start.registered_s(), start.became_s("spawned")
    _rest(bed)
    return {
        "submission": queued_s - began_s,
        "creation": created_s - queued_s,
        "boot": registered_s - created_s,
        "propagation": spawned_s - registered_s,
        "release": first_s - spawned_s,
        "total": first_s - began_s,
    }


def _rest(bed: Bed) -> None:
    """Wait until idle machines of everybody are there, and nothing else."""

    def rest() -> bool:
        nodes = bed.ask("nodes")["nodes"]
        idle = [n for n in nodes if n["phase"] == "ready" and not n["jobs"]]
        return bool(nodes) and idle == nodes and not bed.ask("fleets")["fleets"]

    wait_for(rest, _LIMIT_S, "idle machines and nothing else")


def main() -> int:
    """Run TRIALS rounds of each kind after one that warms the caches, and print the medians."""
    bed = Bed(LabSpec(name=f"bench-jobvm-{os.getpid()}", hosts=1), _policy)
    steps: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        _rest(bed)
        for trial in range(TRIALS + 1):
            for kind in _KINDS:
                times = _own(bed, kind)
                print(f"round {trial} of {TRIALS}: {kind} {times['total']:.2f} s", file=sys.stderr)
                for name, taken_s in times.items() if trial else ():
                    steps[kind][name].append(taken_s)
            _, began_s, first_s = _submit(bed)
            if trial:
                steps["there"]["total"].append(first_s - began_s)
            _rest(bed)
    finally:
        bed.close()
    medians = {k: {n: round(median(v), 3) for n, v in s.items()} for k, s in steps.items()}
    p95 = {k: round(quantiles(s["total"], n=20, method="inclusive")[-1], 3) for k, s in steps.items()}
    result(
        benchmark="jobvm",
        trials=TRIALS,
        **{f"{kind}_s": medians[kind].pop("total") for kind in (*_KINDS, "there")},
        **{f"{kind}_p95_s": p95[kind] for kind in (*_KINDS, "there")},
        steps_s={kind: medians[kind] for kind in _KINDS},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
