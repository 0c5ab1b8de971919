"""Counts the way of one high-priority job through the code, and how the core hangs together.

Prints one line of JSON last. In simulated time a job is at work in an instance when a job of high
priority gets the instance's host: counted is from the change that tells of that job on the host, up
to the provider's `pause`. `files`: files of `backfill/` that were entered, `passes`: how often
execution went from one of them to another, calls and returns alike. Of the core: files without
policies and `__init__`, the longest chain of imports, and statements of all production code.
"""

from __future__ import annotations

import ast
import json
import sys
from functools import cache
from pathlib import Path
from types import FrameType

import backfill
from backfill.core.model.actions import DriverAction
from backfill.core.model.changes import JobSeen
from backfill.core.model.cluster import Job, JobState
from backfill.drivers.simulated.hypervisor.provider import SimulatedProvider
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from backfill.engine.execute.dispatch import attempt
from backfill.engine.looking import Outside
from tests.simulation.policy_cluster import cluster, play, policies, running

PACKAGE = Path(backfill.__file__).parent
CORE = PACKAGE / "core"


class Way:
    """Follows execution from file to file."""

    def __init__(self) -> None:
        self.passes = 0
        self.files: dict[str, int] = {}  # how often each was come to
        self._stack: list[str] = []
        self._at = ""

    def begin(self) -> None:
        """Count from here on."""
        sys.setprofile(self._follow)

    def end(self) -> None:
        """Count no further."""
        sys.setprofile(None)

    def _follow(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(f"{PACKAGE}/") or event not in ("call", "return"):
            return
        if event == "call":
            self._stack.append(file)
        elif self._stack:
            self._stack.pop()
        if event == "call" or self._stack:
            self._come(self._stack[-1])

    def _come(self, file: str) -> None:
        if file != self._at:
            self.passes += bool(self._at)
            self._at = file
            name = str(Path(file).relative_to(PACKAGE))
            self.files[name] = self.files.get(name, 0) + 1


def walk() -> Way:
    """Evict one instance for one job, and follow that."""
    sim, way = cluster(), Way()
    run = play(sim, policies())
    low = sim.submit("htc", 500.0)
    run.until(lambda: running(sim, low), 60)
    run.run(5.0)
    host = next(iter(run.world.managed.values())).host
    high = Job("99", 99, "batch", JobState.RUNNING, nodes=(host,), start_s=sim.now_s)
    outside = Outside(sim.slurm, dict.fromkeys(sim.provider.hosts, sim.provider), sim.clock)
    pause = SimulatedProvider.pause

    def begin(action: DriverAction) -> None:
        attempt(outside, action, sim.clock.now)

    def paused(provider: SimulatedProvider, host: str, name: str) -> None:
        way.end()
        pause(provider, host, name)

    cycle = Cycle(run.world, run.policies, MemoryJournal(), begin, lambda _: None)
    cycle.decide()
    seen = JobSeen(high, sim.now_s)
    SimulatedProvider.pause = paused  # type: ignore[method-assign, assignment]
    try:
        way.begin()
        cycle.take([seen])
        cycle.decide()
    finally:
        SimulatedProvider.pause = pause  # type: ignore[method-assign]
    return way


def imports_of(path: Path) -> set[Path]:
    """Files of the core that a file of it imports, where types alone need them as well not."""
    found: set[Path] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("backfill.core"):
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                target = PACKAGE.parent / (name.replace(".", "/") + ".py")
                if target.exists():
                    found.add(target)
    return found


@cache
def depth(path: Path) -> int:
    """Files in the longest chain of imports that begins here."""
    return 1 + max((depth(other) for other in imports_of(path)), default=0)


def main() -> None:
    way = walk()
    files = [path for path in CORE.rglob("*.py") if path.name != "__init__.py"]
    trees = [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]
    for name, times in sorted(way.files.items(), key=lambda item: -item[1]):
        print(f"{times:5} {name}")
    row = {
        "files": len(way.files),
        "passes": way.passes,
        "core_files": sum("policies" not in path.parts for path in files),
        "core_depth": max(map(depth, files)),
        "statements": sum(isinstance(node, ast.stmt) for tree in trees for node in ast.walk(tree)),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
