"""The world as a step sees it whose findings are kept: whatever is looked at is noted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from backfill.core.findings import Finding, Findings, Notes
from backfill.core.lifecycle import PARTS
from backfill.core.now import Now

if TYPE_CHECKING:
    from backfill.core.cluster import Job
    from backfill.core.fleet import Instance
    from backfill.core.ledger import HostAllocation, Operation
    from backfill.core.lifecycle import HeldJob, ManagedNode, Phase
    from backfill.core.ready_index import ReadyIndex
    from backfill.core.world import World

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class _Noted(Mapping[K, V]):
    """A part of the world; a key is what is looked at, `whole` if it is all of it."""

    __slots__ = ("_all", "_lens", "_whole")

    def __init__(self, lens: Lens, every: Mapping[K, V], whole: str) -> None:
        self._lens, self._all, self._whole = lens, every, whole

    def __getitem__(self, key: K) -> V:
        self._lens.notes.reads.add(key)  # type: ignore[arg-type]  # a text here
        return self._all[key]

    def get(self, key: K, default: Any = None) -> Any:
        self._lens.notes.reads.add(key)  # type: ignore[arg-type]  # likewise
        return self._all.get(key, default)

    def __contains__(self, key: object) -> bool:
        self._lens.notes.reads.add(key)  # type: ignore[arg-type]  # likewise
        return key in self._all

    def __iter__(self) -> Iterator[K]:
        self._lens.notes.reads.add(self._whole)
        return iter(self._all)

    def __len__(self) -> int:
        self._lens.notes.reads.add(self._whole)
        return len(self._all)

    def values(self) -> Any:
        self._lens.notes.reads.add(self._whole)
        return self._all.values()

    def items(self) -> Any:
        self._lens.notes.reads.add(self._whole)
        return self._all.items()


class _Renamed(_Noted[K, V]):
    """The same where `name` says of a key what is looked at."""

    __slots__ = ("_name",)

    def __init__(self, lens: Lens, every: Mapping[K, V], name: Callable[[K], str], whole: str) -> None:
        super().__init__(lens, every, whole)
        self._name = name

    def __getitem__(self, key: K) -> V:
        self._lens.notes.reads.add(self._name(key))
        return self._all[key]

    def get(self, key: K, default: Any = None) -> Any:
        self._lens.notes.reads.add(self._name(key))
        return self._all.get(key, default)

    def __contains__(self, key: object) -> bool:
        self._lens.notes.reads.add(self._name(key))  # type: ignore[arg-type]  # as in a dict
        return key in self._all


class Lens:
    """Looks like a World to steps and policies. What it does not know it reads unnoted: then what
    came of it is not kept.
    """

    def __init__(self, world: World, findings: Findings) -> None:
        self._world = world
        self._findings = findings
        self.notes = Notes()
        self.nodes = _Noted(self, world.nodes, "*nodes")
        self.silent = _Noted(self, world.silent, "*silent")
        self.jobs = _Renamed(self, world.jobs, "job {}".format, "*jobs")
        self.hosts = _Noted(self, world.hosts, "*hosts")
        self.instances = _Renamed(self, world.instances, _name_of, "*instances")
        self.managed = _Noted(self, world.managed, "*managed")
        self.claims = _Renamed(self, world.claims, "claim {}".format, "*claims")
        self.operations = _Renamed(self, world.operations, _node_of, "*operations")
        self.closed = _Noted(self, world.closed, "*closed")
        self.off = _Noted(self, world.off, "*closed")
        self.kept = _Noted(self, world.kept, "*closed")
        self.generations = _Noted(self, world.generations, "*managed")
        self.rates = _Renamed(self, world.rates, "rate {}".format, "*rates")
        self.streaks = _Renamed(self, world.streaks, "streak {}".format, "*streaks")
        self.begin()

    def __getattr__(self, name: str) -> Any:
        self.notes.fleeting = True
        return getattr(self._world, name)

    def as_world(self) -> World:
        """This, for whoever takes a World and only reads it."""
        return cast("World", self)

    def begin(self) -> Notes:
        """Note what is looked at from here on."""
        self.notes = Notes()
        now = Now(self._world.now_s)
        now.notes = self.notes
        self.now_s = now
        return self.notes

    def keep(self, subject: str, work_out: Callable[[World], T]) -> T:
        """A value that is worked out from the world and the policies alone, unless it is known."""
        outer, outer_now = self.notes, self.now_s
        outer.reads.add(f"={subject}")
        found = self._findings.value(subject)
        if found is not None:
            return cast(T, found.value)
        notes = self.begin()
        value = work_out(cast("World", self))
        self.notes, self.now_s = outer, outer_now
        if notes.fleeting:
            outer.fleeting = True
            self._findings.lose(subject)
        else:
            kept = Finding(notes.until_s, value=value, work_out=work_out)
            self._findings.settle(subject, notes, kept)
        return value

    # --- what the world tells, noted -----------------------------------------------------------

    @property
    def sighted_since_s(self) -> float:
        self.notes.reads.add("*sight")
        return self._world.sighted_since_s

    def jobs_on(self, node: str) -> list[Job]:
        self.notes.reads.add(node)
        return self._world.jobs_on(node)

    @property
    def partitions_waiting(self) -> set[str]:
        self.notes.reads.add("*queue")
        return self._world.partitions_waiting

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        self.notes.reads.update(f"queue {partition}" for partition in partitions)
        return self._world.pending(partitions)

    def kinds_pending(self, partitions: Iterable[str]) -> Iterator[tuple[Job, Collection[str]]]:
        self.notes.reads.update(f"queue {partition}" for partition in partitions)
        return self._world.kinds_pending(partitions)

    @property
    def ready(self) -> ReadyIndex:
        self.notes.reads.add("*ready")
        return self._world.ready

    @property
    def burst(self) -> set[str]:
        self.notes.reads.add("*burst")
        return self._world.burst

    def instances_on(self, host: str) -> list[Instance]:
        self.notes.reads.add(host)
        return self._world.instances_on(host)

    def places_of(self, name: str) -> list[Instance]:
        self.notes.reads.add(name)
        return self._world.places_of(name)

    def managed_on(self, host: str) -> list[ManagedNode]:
        self.notes.reads.add(host)
        return self._world.managed_on(host)

    def host_of_node(self, node: str) -> str | None:
        self.notes.reads.add(node)
        return self._world.host_of_node(node)

    def takers(self, host: str) -> tuple[str, ...]:
        self.notes.reads.add(host)
        return self._world.takers(host)

    def claims_on(self, host: str) -> list[HostAllocation]:
        self.notes.reads.add(host)
        return self._world.claims_on(host)

    def in_phase(self, *phases: Phase) -> set[str]:
        self.notes.reads.update(map("phase {}".format, phases))
        return self._world.in_phase(*phases)

    def count_in(self, *phases: Phase) -> int:
        self.notes.reads.update(map("phase {}".format, phases))
        return self._world.count_in(*phases)

    def operations_of(self, name: str) -> list[Operation]:
        self.notes.reads.add(name)
        return self._world.operations_of(name)

    def node_since_s(self, name: str) -> float:
        self.notes.reads.add(name)
        return self._world.node_since_s(name)

    def node_read_s(self, name: str) -> float:
        self.notes.reads.update((f"read {name}", "*read"))
        return self._world.node_read_s(name)

    @property
    def ahead_s(self) -> float:
        self.notes.reads.add("*clock")
        return self._world.ahead_s

    def plain_now_s(self, same_until: Callable[[float], float]) -> float:
        """What is reckoned with it may be kept until then."""
        now_s = self._world.now_s
        self.notes.until_s = min(self.notes.until_s, same_until(now_s))
        return now_s

    def clock_s(self, same_until: Callable[[float], float | None]) -> float:
        """What is reckoned with it may be kept until the clock is set or says that; None: never."""
        clock_s = self._world.now_s - self.ahead_s
        until_s = same_until(clock_s)
        if until_s is not None:
            self.notes.until_s = min(self.notes.until_s, until_s + self.ahead_s)
        return clock_s

    def created_lately(self, within_s: float) -> int:
        """The number goes down when the first of them was made long enough ago."""
        self.notes.reads.add("*managed")
        first_s = self._world.created_after_s(self._world.now_s - within_s)
        if first_s is not None:
            self.notes.until_s = min(self.notes.until_s, first_s + within_s)
        return self._world.created_lately(within_s)

    def destroyed_lately(self, within_s: float) -> int:
        """The number goes down when the first of them was destroyed long enough ago."""
        self.notes.reads.add("*destroyed")
        first_s = self._world.destroyed_after_s(self._world.now_s - within_s)
        if first_s is not None:
            self.notes.until_s = min(self.notes.until_s, first_s + within_s)
        return self._world.destroyed_lately(within_s)

    def destroyed_after_s(self, since_s: float) -> float | None:
        self.notes.reads.add("*destroyed")
        return self._world.destroyed_after_s(since_s)

    def source_read_s(self, source: str) -> float:
        self.notes.reads.add(f"source {source}")
        return self._world.source_read_s(source)

    def deleted(self, name: str, generation: int) -> bool:
        self.notes.reads.add(name)
        return self._world.deleted(name, generation)

    def vanished_on(self, node: str) -> tuple[HeldJob, ...]:
        self.notes.reads.add(node)
        return self._world.vanished_on(node)

    def taken(self, host: str) -> bool:
        self.notes.reads.add(host)
        return self._world.taken(host)

    def arriving(self, host: str) -> bool:
        self.notes.reads.add(host)
        return self._world.arriving(host)

    def alone(self, hosts: Iterable[str]) -> bool:
        self.notes.reads.update(hosts)
        return self._world.alone(hosts)

    def parents_starting(self, host: str) -> int:
        self.notes.reads.add(host)
        return self._world.parents_starting(host)

    def busy(self, name: str) -> bool:
        self.notes.reads.add(name)
        return self._world.busy(name)

    def in_doubt(self, name: str) -> bool:
        self.notes.reads.add(name)
        return self._world.in_doubt(name)

    def running(self, key: str) -> bool:
        self.notes.reads.add(_node_of(key))
        return self._world.running(key)

    def fresh(self, source: str, stale_after_s: float) -> bool:
        """A fresh picture stays so for a known time; how old an old one is changes always."""
        known = self._world.sources.get(source)
        if known is None or not self._world.fresh(source, stale_after_s):
            self.notes.fleeting = True
            return False
        self.notes.until_s = min(self.notes.until_s, known.seen_s + stale_after_s)
        return True


def _name_of(key: tuple[str, str]) -> str:
    return key[1]


def _node_of(key: str) -> str:
    return key.partition(":")[2].partition(":")[0]


def plain_times(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a record with plain numbers where the present time was put in."""
    return {name: float(v) if type(v) is Now else _plain_part(v) for name, v in values.items()}


def _plain_part(value: Any) -> Any:
    """A part of a record with plain numbers in it."""
    kind: Any = type(value)
    if kind not in PARTS:
        return value
    given = {f.name: getattr(value, f.name) for f in fields(kind)}
    late = {name: float(v) for name, v in given.items() if type(v) is Now}
    return replace(value, **late) if late else value
