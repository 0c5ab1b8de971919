"""The mutable things of the simulated hardware: machines, copies of jobs, hosts, instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backfill.core.model.fleet import (
    IN_MEMORY,
    CloneParent,
    Host,
    Instance,
    InstanceSpec,
    InstanceState,
    NumaNode,
)
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.numa import choose, fits, usable
from backfill.drivers.simulated.events import SimEvent
from backfill.ports.errors import NoCapacityError


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise.

    `kind`: stale, twice, lost, room, overfull, double-name, double-host; or of what we did to work:
    destroyed, cancelled, undone, timeout, second, late (see losses.py).
    """

    at_s: float
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} (at {self.at_s:.3f})"


@dataclass(frozen=True, slots=True)
class Count:
    """The counting job `job` wrote `i` in its restart number `restart`."""

    job: str
    restart: int
    i: int
    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of time in which one copy of a job really computed, `done_s` before it."""

    job: str
    restart: int
    node: str
    host: str
    done_s: float
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class SimMachine:
    """Something with CPUs that runs a slurmd: hardware, or the inside of an instance."""

    node: str
    host: str
    metal: bool
    cpus: int
    on: bool = False  # its CPUs may run (state of the instance)
    powered: bool = True  # the hardware below has power
    connected: bool = True  # its network works
    findable: bool = True  # slurmctld looks for its slurmd where it is
    booted: bool = False
    booted_s: float = 0.0  # when its slurmd came up
    boot_left_s: float | None = None  # None: it never gets there
    boot: SimEvent | None = None
    boot_from_s: float = 0.0
    alive: bool = False
    answering: bool = False
    stopped_at_s: float = 0.0
    silent_s: float = 0.0  # since when its slurmd cannot be reached, while it cannot
    unheard_s: float | None = None  # since when it has stood still, or has and not been woken since
    stood_s: float = 0.0  # how long it stood still in all, which its uptime does not count
    lag_s: float = 0.0  # how far its clock is behind
    runs: list[SimRun] = field(default_factory=list)
    kept_mb: int | None = None  # what its balloon leaves it
    throttled: bool = False  # alive, but its share of the CPUs is too small to count
    frozen: bool = False  # alive, but its guest keeps the jobs in it still

    def stood_in_s(self, now_s: float) -> float:
        """For how long it has stood still by now without a break."""
        return 0.0 if self.on else now_s - self.stopped_at_s


@dataclass(slots=True, eq=False)
class SimRun:
    """One started copy of a job: its processes on all its machines."""

    job: str
    restart: int
    machines: tuple[SimMachine, ...]
    needed_s: float
    done_s: float = 0.0
    since_s: float | None = None  # set while it computes
    end: SimEvent | None = None
    stopped: bool = False  # SIGSTOP by `scontrol suspend`
    stale: bool = False  # Slurm has given it up without being able to kill it
    finished: bool = False
    broken: bool = False  # what it had on one of its machines is gone; the rest never computes again
    answers: bool = False  # whoever talks to it over the network hears from it, be it slow


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A copy of a job as it stands in a checkpoint."""

    job: str
    restart: int
    nodes: tuple[str, ...]  # of all its machines
    needed_s: float
    done_s: float
    stopped: bool


@dataclass(slots=True, eq=False)
class SimInstance:
    """An instance on a simulated hypervisor."""

    spec: InstanceSpec
    host: str
    state: InstanceState
    machine: SimMachine
    created_s: float
    unreadable: str = ""  # why what is saved of it cannot be read
    numa: int | None = None  # the NUMA node to which it was bound when it came into memory

    def view(self) -> Instance:
        return Instance(
            name=self.spec.name,
            host=self.host,
            state=self.shown,
            problem=self.unreadable,
            tag=self.spec.tag,
            resources=self.spec.flavour.resources,
            rss_mb=self.rss_mb,
            boot_s=self.created_s,
            throttled=self.machine.throttled,
            frozen=self.machine.frozen,
            numa=self.numa if self.state in IN_MEMORY else None,
        )

    @property
    def shown(self) -> InstanceState:
        """Its state, as far as it can be told: what is saved on disk has to be readable."""
        hidden = self.unreadable and self.state not in IN_MEMORY
        return InstanceState.UNKNOWN if hidden else self.state

    @property
    def rss_mb(self) -> int:
        """Memory of its host that it has now, MB."""
        if self.state not in IN_MEMORY:
            return 0
        memory_mb = self.spec.flavour.memory_mb
        return min(memory_mb, self.machine.kept_mb or memory_mb)


class Marks:
    """All instances by what no two of them may have in common: name, address and node."""

    def __init__(self) -> None:
        self._having: dict[tuple[str, str], list[SimInstance]] = {}

    def add(self, instance: SimInstance) -> None:
        """Take in that it has come to a host."""
        for mark in _marks(instance):
            self._having.setdefault(mark, []).append(instance)

    def alike(self, instance: SimInstance, hosts: Mapping[str, SimHost]) -> list[SimInstance]:
        """Others that are on any of these hosts, which all are; who has left is forgotten."""
        found: dict[int, SimInstance] = {}
        for mark in _marks(instance):
            there = {
                id(one): one
                for one in self._having[mark]
                if hosts[one.host].instances.get(one.spec.name) is one
            }
            self._having[mark] = list(there.values())
            found |= there
        found.pop(id(instance), None)
        return list(found.values())


class Roster(dict[str, SimInstance]):
    """The instances on one host, by name."""

    def __init__(self, marks: Marks) -> None:
        super().__init__()
        self._marks = marks

    def __setitem__(self, name: str, instance: SimInstance) -> None:
        super().__setitem__(name, instance)
        self._marks.add(instance)


def _marks(instance: SimInstance) -> tuple[tuple[str, str], ...]:
    spec = instance.spec
    return ("name", spec.name), ("address", spec.address), ("node", spec.tag.node)


@dataclass(slots=True, eq=False)
class SimHost:
    """A hypervisor; `node` is the Slurm node of the same hardware, or None."""

    name: str
    node: str | None
    capacity: Resources
    instances: Roster
    reachable: bool = True
    powered: bool = True
    problem: str = ""
    saves_paused: bool = True
    parents: list[CloneParent] = field(default_factory=list)
    unproven: str = ""
    shares: bool = True
    sizes: tuple[Resources, ...] = ()
    networks: tuple[str, ...] = ()
    numa: tuple[NumaNode, ...] = ()

    @property
    def answers(self) -> bool:
        """Return True if its hypervisor can be reached."""
        return self.reachable and self.powered

    def view(self) -> Host:
        problem = "" if self.answers else self.problem
        return Host(
            self.name,
            self.node,
            self.capacity,
            self.answers,
            problem,
            self.saves_paused,
            parents=tuple(self.parents),
            unproven=self.unproven,
            shares=self.shares,
            sizes=self.sizes,
            networks=self.networks,
            numa=self.numa,
        )

    def bind(self, instance: SimInstance) -> None:
        """Bind one that comes into memory here to a NUMA node. NoCapacityError: none has the memory."""
        spec, whole = instance.spec, usable(self.numa, 1.0, NOTHING)
        others = (one.view() for one in self.instances.values() if one is not instance)
        instance.numa = choose(whole, others, spec.flavour.resources)
        if instance.numa is None and fits(whole, spec.flavour.resources):
            what = f"none of its NUMA nodes has {spec.flavour.memory_mb} MB left for {spec.name}"
            raise NoCapacityError(self.name, what)

    @property
    def free_memory_mb(self) -> int:
        return self.capacity.memory_mb - sum(i.rss_mb for i in self.instances.values())
