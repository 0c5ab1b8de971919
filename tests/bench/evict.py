"""Eviction latency: from slurmctld's allocation of a job to its script's first command.

All kinds of start are interleaved in one run, so that they share whatever else the machine does.
Prints one line of JSON last; seconds, medians.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median, quantiles
from typing import Any

from backfill.lab.spec import LabSpec
from tests.bench.rig import Bed, result, wait_for

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "20"))
_SAMPLES: dict[str, list[float]] = defaultdict(list)

NATIVE = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=SUSPEND,GANG",
    "SchedulerTimeSlice=5",
    "PartitionName=under Nodes=ALL PriorityTier=1 PreemptMode=SUSPEND OverSubscribe=FORCE:1",
    "PartitionName=over Nodes=ALL PriorityTier=10 PreemptMode=OFF OverSubscribe=FORCE:1",
)
# The guests and their daemon stay out of the way of the other rows between two evictions.
CALM: dict[str, Any] = {
    "daemon": {"poll_s": 10, "host_poll_s": 10},
    "scale": {"idle_s": 3600},
    "limits": {"max_instances": 1},
}
SUSPEND_FIRST = {
    **CALM,
    "proof": "memory",
    "answer_within_s": 8,
    "ladder": [{"rung": "suspend", "within_s": 30}, {"rung": "requeue", "within_s": 30}],
}


def spec(name: str, **changes: Any) -> LabSpec:
    """A lab of one host (two for the row that needs an idle one)."""
    return LabSpec(name=f"bench-{name}-{os.getpid()}", **{"hosts": 1, **changes})


class Rows:
    """The beds, and one method per row of the result."""

    def __init__(self, stack: ExitStack) -> None:
        def bed(made: Bed) -> Bed:
            stack.callback(made.close)
            return made

        self.bare = bed(Bed(spec("bare", hypervisor="none", tally=False)))
        self.native = bed(Bed(spec("native", hypervisor="none", tally=False, extra_conf=NATIVE)))
        self.pause = bed(Bed(spec("pause", hooks="slurmctld", hosts=2), CALM))
        self.suspend = bed(Bed(spec("suspend", hooks="slurmctld", hook_timeout_ms=9000), SUSPEND_FIRST))
        self.host = bed(Bed(spec("host", hooks="host"), CALM))
        # Which host carries the one instance, and which stays empty.
        self.low = self.pause.count_until_seen()
        self.busy = str(self.pause.ask("instances")["instances"][0]["host"])
        self.free = next(h for h in self.pause.lab.hosts if h != self.busy)
        self.pause.cancel(self.low)

    def bare_idle(self) -> None:
        self.bare.idle("bm1")
        self._keep("bare_idle", *self.bare.timed("-w", "bm1"))

    def idle(self) -> None:
        self.pause.idle(self.free)
        self._keep("idle", *self.pause.timed("-w", self.free))

    def evict_by_pause(self) -> None:
        low = self.pause.count_until_seen()
        self.pause.idle(self.busy)
        self._keep("pause", *self.pause.timed("-w", self.busy, run_s=0.3))
        ended_s = self.pause.ended_s()
        _SAMPLES["return"].append(self._next_count(self.pause, low, ended_s) - ended_s)
        self.pause.cancel(low)

    def evict_by_suspend(self) -> None:
        low = self.suspend.count_until_seen()
        self.suspend.idle("bm1")
        self._keep("suspend", *self.suspend.timed("-w", "bm1", run_s=0.3))
        ended_s = self.suspend.ended_s()
        self._next_count(self.suspend, low, ended_s)
        self.suspend.cancel(low)

    def native_gang(self) -> None:
        low = self.native.sbatch("-p", "under", "-w", "bm1", "--exclusive", "--wrap", "while :; do :; done")
        wait_for(lambda: self.native.state(low) == "RUNNING", 30, "the job under the native one")
        self._keep("native", *self.native.timed("-p", "over", "-w", "bm1", "--exclusive"))
        self.native.cancel(low)

    def srun_bare(self) -> None:
        self.bare.idle("bm1")
        _SAMPLES["srun_bare"].append(self.bare.srun("-w", "bm1"))

    def srun_pause(self) -> None:
        low = self.host.count_until_seen()
        self.host.idle("bm1")
        _SAMPLES["srun_pause"].append(self.host.srun("-w", "bm1"))
        self._next_count(self.host, low, self.host.ended_s())
        self.host.cancel(low)

    def _keep(self, row: str, from_allocation_s: float, total_s: float) -> None:
        _SAMPLES[row].append(from_allocation_s)
        _SAMPLES[f"total_{row}"].append(total_s)

    @staticmethod
    def _next_count(bed: Bed, low: str, after_s: float) -> float:
        """When the paused job counted on, after `after_s`."""
        return float(
            wait_for(
                lambda: next((t for t in bed.counts(low) if t > after_s), 0.0), 60, f"job {low} counting on"
            )
        )


def main() -> int:
    """Run all rows TRIALS times, one after the other, and print the medians."""
    with ExitStack() as stack:
        rows = Rows(stack)
        kinds: list[Callable[[], None]] = [
            rows.bare_idle,
            rows.idle,
            rows.evict_by_pause,
            rows.native_gang,
            rows.srun_bare,
            rows.srun_pause,
            rows.evict_by_suspend,
        ]
        for trial in range(TRIALS + 1):
            for kind in kinds:
                kind()
            if trial == 0:
                _SAMPLES.clear()  # the first round warms caches and connections
            print(f"round {trial} of {TRIALS}", file=sys.stderr)
    _print()
    return 0


def _print() -> None:
    values: dict[str, Any] = {f"{row}_s": round(median(s), 5) for row, s in _SAMPLES.items()}
    values["pause_p95_s"] = round(quantiles(_SAMPLES["pause"], n=20)[-1], 5)
    values["pause_over_bare_ms"] = round(
        1000 * (median(_SAMPLES["pause"]) - median(_SAMPLES["bare_idle"])), 2
    )
    values["srun_over_bare_ms"] = round(
        1000 * (median(_SAMPLES["srun_pause"]) - median(_SAMPLES["srun_bare"])), 2
    )
    result(benchmark="evict", trials=TRIALS, **values)


if __name__ == "__main__":
    sys.exit(main())
