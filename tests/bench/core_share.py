"""Shows how much of a replay is the core's: what an infinitely quick one would gain.

Prints one line of JSON last. The replay is `policy_backlog_jobs_per_cpu_s` of `replay.py`: the first 100
jobs of the trace, beside a backlog of 300 that keeps an instance on every idle node. It runs twice in one
process, plainly and with a clock around each plan and each change that is taken outside of plans.
`gain_at_most` is how many times quicker it would be if both cost nothing; the clock's own cost counts as
theirs, so that it is rather less. The rest is the simulated cluster, and what reads it.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from unittest.mock import patch

from backfill.core.reconcile.planner import enact
from backfill.core.world import World
from backfill.sim.traces.reader import read_trace
from backfill.ui.commands import replay as command
from tests.bench.replay import NASA_CLUSTER, REPLAY, beside_backlog, unsaturated

JOBS, BACKLOG = 100, 300


class Clock:
    """Counts CPU seconds of calls by name; of those within one another the outermost's."""

    def __init__(self) -> None:
        self.cpu_s: dict[str, float] = {}
        self._busy = False

    def around(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object, **kwargs: object) -> object:
            if self._busy:
                return call(*args, **kwargs)
            self._busy, began_s = True, time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                self._busy = False
                self.cpu_s[name] = self.cpu_s.get(name, 0.0) + time.process_time() - began_s

        return timed


def replay_cpu_s(arguments: Sequence[str]) -> float:
    """Return the CPU seconds of one replay in this process; RuntimeError if it fails."""
    began_s = time.process_time()
    with redirect_stdout(io.StringIO()):
        status = command.main(arguments)
    if status:
        raise RuntimeError(f"the replay ended with status {status}")
    return time.process_time() - began_s


def main() -> None:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        trace, row = unsaturated(Path(folder))
        rows = read_trace(trace).fitting(int(NASA_CLUSTER.partition("x")[0])).taken(range(JOBS), {})
        arguments = [str(one) for one in beside_backlog(rows, Path(folder), BACKLOG)[len(REPLAY) :]]
        replay_cpu_s(arguments)  # what is imported and made once
        plain_s = replay_cpu_s(arguments)
        with (
            patch("backfill.engine.cycle.enact", clock.around("plans", enact)),
            patch.object(World, "apply", clock.around("changes", World.apply)),
        ):
            replay_cpu_s(arguments)
    rest_s = plain_s - sum(clock.cpu_s.values())
    row |= {"replay_cpu_s": round(plain_s, 2)}
    row |= {f"{name}_cpu_s": round(took_s, 2) for name, took_s in clock.cpu_s.items()}
    print(json.dumps(row | {"gain_at_most": round(plain_s / rest_s, 1)}))


if __name__ == "__main__":
    main()
