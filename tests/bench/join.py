"""Node join: from the decision to make an instance to the first command of its first job.

Every round starts from nothing: one waiting job, no instance. Prints one line of JSON last;
seconds, medians.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from statistics import median
from typing import Any

from backfill.lab.spec import LabSpec
from tests.bench.rig import COUNTER, Bed, result, wait_for

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "10"))
_STEP = re.compile(r"^BACKFILL-STEP (\w+) ([\d.]+)", re.MULTILINE)

POLICY: dict[str, Any] = {"scale": {"idle_s": 3}, "limits": {"max_instances": 1}}


class Story:
    """When each thing happened to one generation of an instance, by the daemon's journal."""

    def __init__(self, bed: Bed) -> None:
        self._rows = bed.journal()

    def decided_s(self) -> float:
        """When the newest instance was decided on."""
        found = (at_s for at_s, _, body in self._rows if self._became(body, "booting"))
        return float(max(found))

    def outcome_s(self, call: str) -> float:
        """When the first call of that name since the decision ended."""
        since_s = self.decided_s()
        return float(
            min(
                at_s
                for at_s, kind, body in self._rows
                if kind == "outcome" and at_s > since_s and body["key"].startswith(f"{call}:")
            )
        )

    def registered_s(self) -> float:
        """When Slurm first showed the newest node as registered."""
        since_s = self.decided_s()
        nodes = ((at_s, b["node"]) for at_s, _, b in self._rows if b.get("t") == "NodeSeen")
        return float(
            min(
                at_s
                for at_s, node in nodes
                if at_s > since_s and node["name"] == "vn1" and node.get("slurmd_start_s", 0) > 0
            )
        )

    def ready_s(self) -> float:
        """When the newest node had proven itself and was released to Slurm."""
        since_s = self.decided_s()
        return float(
            min(
                at_s
                for at_s, _, body in self._rows
                if at_s > since_s and body.get("t") == "SetNode" and body["node"]["phase"] == "ready"
            )
        )

    @staticmethod
    def _became(body: dict[str, Any], phase: str) -> bool:
        return bool(body.get("t") == "SetNode" and body["node"]["phase"] == phase)


def one_join(bed: Bed) -> dict[str, float]:
    """One round; the seconds that each step took, in order, and their sum as `total`."""
    job = bed.sbatch("-p", "htc", str(COUNTER), "5", "0.01")
    wait_for(lambda: bed.counts(job), 60, f"the first word of job {job}")
    console = bed.lab.shared / bed.lab.spec.name / "vn1" / "console.log"
    guest = {name: float(up_s) for name, up_s in _STEP.findall(_text(console))}
    story = Story(bed)
    decided_s, first_s = story.decided_s(), bed.counts(job)[0]
    created_s, registered_s = story.outcome_s("CreateInstance"), story.registered_s()
    released_s = story.outcome_s("UndrainNode")
    bed.gone(job)
    wait_for(lambda: not bed.ask("nodes")["nodes"], 60, "the instance's removal")
    return {
        "create": created_s - decided_s,
        "boot": registered_s - created_s,
        "prove": released_s - registered_s,
        "first_job": first_s - released_s,
        **{f"guest_{name}": up_s for name, up_s in guest.items()},
        "total": first_s - decided_s,
    }


def _text(path: Any) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def main() -> int:
    """Run TRIALS rounds after one that warms the caches, and print the medians."""
    bed = Bed(LabSpec(name=f"bench-join-{os.getpid()}", hosts=1), POLICY)
    steps: dict[str, list[float]] = defaultdict(list)
    try:
        for trial in range(TRIALS + 1):
            times = one_join(bed)
            print(f"round {trial} of {TRIALS}: {times['total']:.2f} s", file=sys.stderr)
            if trial:
                for name, taken_s in times.items():
                    steps[name].append(taken_s)
    finally:
        bed.close()
    medians = {name: round(median(values), 4) for name, values in steps.items()}
    result(benchmark="join", trials=TRIALS, linked_s=medians.pop("total"), steps_s=medians)
    return 0


if __name__ == "__main__":
    sys.exit(main())
