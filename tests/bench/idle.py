"""What busy instances cost a process that starts on their host, by their group's CPU weight.

A shell that starts two programs stands for what a job's start is made of, beside a busy loop on
every processor. All kinds are interleaved. Prints one line of JSON last; seconds, medians.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles

from backfill.lab import cgroups
from tests.bench.rig import result

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
_STARTS = 100
# The file and its value; the first names nothing: the loops have the weight of everything else.
_KINDS = {"equal": ("cpu.shares", "1024"), "weight": ("cpu.shares", "2"), "idle": ("cpu.idle", "1")}


@contextmanager
def _busy(group: Path) -> Iterator[None]:
    """A busy loop for each processor, in a group below `group` as libvirt makes it."""
    guests = group / "guest"
    guests.mkdir(parents=True)
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(os.cpu_count() or 1)]
    try:
        for loop in loops:
            (guests / "cgroup.procs").write_text(str(loop.pid))
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
        guests.rmdir()
        group.rmdir()


def _start_s() -> float:
    """One start out of rest: whoever has just run is behind the others in the scheduler's queue."""
    time.sleep(0.02)
    began_s = time.perf_counter()
    subprocess.run(["sh", "-c", "/bin/true; /bin/true"], check=True)
    return time.perf_counter() - began_s


def main() -> int:
    """Measure all kinds TRIALS times, in turn."""
    if reason := cgroups.usable():
        print(f"cannot measure: {reason}", file=sys.stderr)
        return 1
    samples: dict[str, list[float]] = defaultdict(list)
    group = cgroups.BASE / "cpu" / f"backfill-bench-{os.getpid()}"
    with _busy(group):
        for _ in range(TRIALS):
            for kind, (file, value) in _KINDS.items():
                (group / "cpu.idle").write_text("0")
                (group / file).write_text(value)
                samples[kind] += [_start_s() for _ in range(_STARTS)]
    result(
        benchmark="idle",
        trials=TRIALS * _STARTS,
        **{f"{kind}_s": round(median(found), 5) for kind, found in samples.items()},
        **{f"{kind}_p95_s": round(quantiles(found, n=20)[-1], 5) for kind, found in samples.items()},
        weight_over_idle=round(median(samples["weight"]) / median(samples["idle"]), 2),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
