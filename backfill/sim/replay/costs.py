"""Costs of steps in a replay, and their file: durations, transfers that share bandwidth, failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Amount, Key, Section, section
from backfill.core.model import actions as act
from backfill.core.model.lifecycle import Phase
from backfill.core.world import World
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.events import SimEvent
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError

_CALLS: Mapping[type, str] = {
    act.CreateNode: "create_node",
    act.DrainNode: "drain",
    act.UndrainNode: "undrain",
    act.CreateInstance: "create",
    act.DeleteInstance: "delete",
    act.PauseInstance: "pause",
    act.ThrottleInstance: "throttle",
    act.ThawInstance: "thaw",
    act.SuspendInstance: "suspend",
    act.RestoreInstance: "restore",
    act.MigrateInstance: "migrate",
    act.WakeInstance: "wake",
    act.ProbeJobs: "console",
}


def call_of(action: act.DriverAction, world: World) -> str:
    """Return the name of the call in StepCosts and to faults; `world`: as it is when the call begins."""
    call = _CALLS.get(type(action), "slurm_call")
    if call == "wake" and isinstance(action, act.WakeInstance):
        node = world.managed.get(action.subject)
        if node is not None and node.phase is not Phase.BOOTING:
            return "wake_again"
    return call


TRANSFERS = ("suspend", "restore", "migrate")
# Calls of the hypervisors that may be ordered to fail now and then.
MAY_FAIL = ("create", "delete", "pause", "thaw", *TRANSFERS, "wake")


@dataclass(frozen=True, slots=True)
class ReplayCosts:
    """`transfers`: so many suspends, restores and migrations go at full speed at the same time.

    More of them share what there is; 0: there is enough for all. `failures`: by call, the share
    of the calls that fail, drawn from the seed.
    """

    steps: StepCosts = field(default_factory=StepCosts)
    transfers: int = 0
    failures: Mapping[str, float] = field(default_factory=dict)

    def of(self, call: str, memory_mb: int) -> tuple[float, float]:
        """Seconds that the call takes by itself, and seconds of transfer at full speed."""
        fixed_s = self.steps.of(call)
        whole_s = self.steps.of(call, memory_mb)
        return (fixed_s, whole_s - fixed_s) if self.transfers else (whole_s, 0.0)

    def order_failures(self, sim: SimulatedWorld) -> None:
        """Let calls fail now and then."""
        for call in MAY_FAIL:
            rate = self.failures.get(call, 0.0)
            if rate > 0.0:
                error = UnreachableError(call, "failed, as it was told to now and then")
                sim.faults.fail(call, error, times=-1, rate=rate)


# More than a clock that shows epoch seconds can be off.
_ROUNDING_S = 1e-6


@dataclass(slots=True, eq=False)
class _Transfer:
    left_s: float  # at full speed
    done: Callable[[], None]


class Transfers:
    """Transfers under way. Up to `full` of them run at full speed, more share that equally."""

    def __init__(self, sim: SimulatedWorld, full: int) -> None:
        self._sim = sim
        self._full = full
        self._active: list[_Transfer] = []
        self._seen_s = sim.now_s
        self._next: SimEvent | None = None

    def begin(self, work_s: float, done: Callable[[], None]) -> None:
        """Begin one that takes `work_s` when it is alone, and then do `done`."""
        self._advance()
        self._active.append(_Transfer(work_s, done))
        self._plan()

    def _speed(self) -> float:
        return min(1.0, self._full / len(self._active))

    def _advance(self) -> None:
        now_s = self._sim.now_s
        if self._active:
            progress_s = (now_s - self._seen_s) * self._speed()
            for transfer in self._active:
                transfer.left_s -= progress_s
        self._seen_s = now_s

    def _plan(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._active:
            least_s = min(transfer.left_s for transfer in self._active)
            at_s = self._seen_s + max(0.0, least_s) / self._speed()
            self._next = self._sim.at(at_s, self._end)

    def _end(self) -> None:
        self._next = None
        self._advance()
        over = [t for t in self._active if t.left_s <= _ROUNDING_S]
        self._active = [t for t in self._active if t.left_s > _ROUNDING_S]
        self._plan()
        for transfer in over:
            transfer.done()


def load_costs(path: str | os.PathLike[str]) -> ReplayCosts:
    """Read and check a YAML file whose keys are the fields of StepCosts and ReplayCosts.

    Raises ConfigError with every problem.
    """
    reader = Reader(os.fspath(path))
    found = _read(reader, Path(path))
    if reader.problems or found is None:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    failures = found.pop("failures", {})
    transfers = found.pop("transfers", 0)
    return ReplayCosts(StepCosts(**found), transfers, failures)


def _read(reader: Reader, path: Path) -> dict[str, Any] | None:
    text = read_text(reader, path, "costs file")
    if text is None:
        return None
    tree = read_keys(reader, text, "costs file", "give boot_s: 30s, for example")
    if tree is None:
        return None
    found = reader.keys(_shape(), tree, "")
    return None if BAD in found.values() else found


def _shape() -> Section:
    """Durations as in a policy file, 0 included; rates are seconds per MB, as plain numbers."""
    rate, duration = Amount(open=False), Amount(unit="s", open=False)
    steps = tuple(
        Key(key.name, rate if key.name.endswith("_per_mb") else duration, key.default)
        for key in section(StepCosts).keys
    )
    share = Amount(most=1, open=False)
    failures = Section(dict, tuple(Key(call, share, 0.0) for call in MAY_FAIL))
    many = Amount(whole=True, open=False)
    return Section(dict, (*steps, Key("transfers", many, 0), Key("failures", failures, {})))
