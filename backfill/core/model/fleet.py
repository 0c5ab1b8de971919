"""The hypervisor side's nouns: hosts, flavours, instances, and fleets of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from backfill.core.model.company import Company
from backfill.core.model.keys import about, key
from backfill.core.model.quantities import Resources


class InstanceState(StrEnum):
    """State of an instance as its provider reports it."""

    RUNNING = "running"
    PAUSED = "paused"  # stopped, memory kept
    SUSPENDED = "suspended"  # memory on disk, RAM freed
    MIGRATING = "migrating"  # being received by this host; not ours to touch yet
    OFF = "off"  # defined, no process and no saved memory
    CRASHED = "crashed"
    BUILDING = "building"
    UNKNOWN = "unknown"  # its provider could not tell: `Instance.problem` says why; it is kept


class Rung(StrEnum):
    """One kind of eviction, cheapest first."""

    THROTTLE = "throttle"
    PAUSE = "pause"
    SUSPEND = "suspend"
    MIGRATE = "migrate"
    REQUEUE = "requeue"
    CANCEL = "cancel"


# States in which it stands still with its work kept.
STILL = frozenset({InstanceState.PAUSED, InstanceState.SUSPENDED})


# States in which an instance takes memory of its host.
IN_MEMORY = frozenset(
    {InstanceState.RUNNING, InstanceState.BUILDING, InstanceState.PAUSED, InstanceState.MIGRATING}
)


class CloneMethod(StrEnum):
    """How an instance comes from its master image; afterwards all three behave alike."""

    FULL = "full"  # a disk of its own, boots
    LINKED = "linked"  # a disk that holds only what differs from the image, boots
    INSTANT = "instant"  # goes on from a booted parent, memory and disk copied on write


@dataclass(frozen=True, slots=True)
class Flavour:
    """The shape of our instances."""

    cpus: int = field(metadata=about("CPUs of an instance, and of its node in Slurm."))
    memory_mb: int = field(metadata=about("Memory of an instance."))
    disk_gb: int = key(4, "Size of an instance's own disk.")
    memory_margin_mb: int = key(
        48, "Slurm is promised this much less than the guest has, so that RealMemory always fits.", least=0
    )

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory_mb)

    @property
    def node_memory_mb(self) -> int:
        """RealMemory that the node is registered with, MB."""
        return self.memory_mb - self.memory_margin_mb


@dataclass(frozen=True, slots=True)
class CloneParent:
    """What instant clones of an image and shape go on from, on one host.

    `made`: tried out and frozen, it takes no CPU and no memory that the host could not have at
    once; otherwise a guest is running there to become it.
    """

    image: str
    cpus: int
    memory_mb: int
    disk_gb: int
    made: bool

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory_mb)

    def suits(self, image: str, flavour: Flavour) -> bool:
        """Return True if instances like this can go on from it, once it is made."""
        shape = (flavour.cpus, flavour.memory_mb, flavour.disk_gb)
        return self.image == image and (self.cpus, self.memory_mb, self.disk_gb) == shape

    def covers(self, flavour: Flavour) -> bool:
        """Return True if instances that go on from it have all that is asked for."""
        return flavour.resources.fits(self.resources) and flavour.disk_gb <= self.disk_gb


@dataclass(frozen=True, slots=True)
class NumaNode:
    """CPUs of a host with the memory that is near to them, MiB. `number`: as the host counts them."""

    number: int
    cpus: int
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that carries instances. `node` is its own Slurm node (harvest) or None (burst)."""

    name: str
    node: str | None
    capacity: Resources
    reachable: bool = True
    problem: str = ""  # why it is not reachable, for people
    # Whether a paused instance's memory can be written to disk without letting it run again.
    saves_paused: bool = True
    # Share of its CPU time that was used lately, 0 to 1, as its hypervisor counts; None: not known.
    busy: float | None = None
    # Of instant clones; None where there can be none.
    parents: tuple[CloneParent, ...] | None = None
    functions: int = 0  # virtual functions of its cards, held or not
    # Why no instance is to be made on it: its clock or its files are not as instances need them.
    unproven: str = ""
    keeps: bool = True  # whether checkpoints of what is on it can be kept
    shares: bool = True  # whether instances on it can share memory
    # Each of its instances takes the first of these that is large enough; empty: as much as it is.
    sizes: tuple[Resources, ...] = ()
    networks: tuple[str, ...] = ()  # to which instances on it can be connected, beside the usual one
    # To one of which each instance on it is bound; empty: to none.
    numa: tuple[NumaNode, ...] = ()

    def size_for(self, shape: Resources) -> Resources | None:
        """Return what an instance of that shape takes of it; None: it can have none of that shape."""
        if not self.sizes:
            return shape
        return next((size for size in self.sizes if shape.fits(size)), None)

    def has_parent(self, image: str, flavour: Flavour) -> bool:
        """Return True if an instant clone could be made here without making a parent first."""
        return any(p.made and p.suits(image, flavour) for p in self.parents or ())

    @property
    def parents_starting(self) -> tuple[CloneParent, ...]:
        """Parents that are just being made, each of which runs like an instance."""
        return tuple(p for p in self.parents or () if not p.made)


@dataclass(frozen=True, slots=True)
class Tag:
    """Our mark on every instance, kept by the provider: orphans are found by it."""

    cluster: str
    node: str
    generation: int


@dataclass(frozen=True, slots=True)
class Instance:
    """An instance on one host as last seen. `rss_mb` is host memory now in use, None if unknown."""

    name: str
    host: str
    state: InstanceState
    tag: Tag
    resources: Resources
    rss_mb: int | None = None
    boot_s: float = 0.0
    throttled: bool = False  # its CPUs run for a small share of the time only
    frozen: bool = False  # its guest froze its jobs, which stay so until it is said which may go on
    devices_of: str = ""  # id of the job for which it holds devices
    plugged: bool = False  # whether they are in its guest
    functions: int = 0  # how many virtual functions are among them
    region_mb: int = 0  # memory of its host that the instances of that job share
    numa: int | None = None  # the NUMA node to which it is bound while it is in memory; None: to none
    restarted: bool = False  # somebody booted it anew, while its memory was on disk
    wanted_back: str = ""  # why its host's owner wants this very instance gone
    no_room: str = ""  # why its host, which had accepted it, found no room for it after all
    # What keeps its state from being known, or stopped its guest without our doing, with a remedy.
    problem: str = ""

    @property
    def runs(self) -> bool:
        """Return True if its CPUs may be at work, however slowly."""
        return self.state in (InstanceState.RUNNING, InstanceState.BUILDING) or self._may_run

    @property
    def occupies_cpu(self) -> bool:
        return self.runs and not self.throttled

    @property
    def occupies_memory(self) -> bool:
        return self.state in IN_MEMORY or self._may_run

    @property
    def in_use(self) -> Resources:
        """Return what it takes of its host at this moment."""
        return Resources(
            self.resources.cpus if self.occupies_cpu else 0,
            self.resources.memory_mb if self.occupies_memory else 0,
        )

    @property
    def _may_run(self) -> bool:
        """Of an unknown one that is seen to use no memory its hypervisor knows no process."""
        return self.state is InstanceState.UNKNOWN and self.rss_mb != 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One instance's saved state. Those of a parallel job share an `id` and name each other.

    `stopped_s`, `created_s`, `expires_s`: epoch seconds. `checksum` is empty until it is sealed;
    `problem` says why it is of no use.
    """

    id: str
    name: str  # the instance, and its node
    job: str = ""
    restarts: int = 0
    generation: int = 0
    host: str = ""
    members: tuple[str, ...] = ()
    created_s: float = 0.0
    expires_s: float = 0.0
    size_mb: float = 0.0
    checksum: str = ""
    compression: str = "none"
    compression_why: str = ""
    where: str = ""
    problem: str = ""
    whole: str = ""  # the checksum of all parts together, the same in each, once all are sealed


@dataclass(frozen=True, slots=True)
class Leak:
    """Files that no instance needs any more. `age_s`: since they were last written."""

    name: str
    where: str
    size_mb: float
    age_s: float


@dataclass(frozen=True, slots=True)
class InstanceSpec:
    """Everything a provider needs to create one instance."""

    name: str
    host: str
    tag: Tag
    flavour: Flavour
    image: str
    address: str  # CIDR, such as 10.77.1.3/16
    features: tuple[str, ...] = ()
    method: CloneMethod = CloneMethod.LINKED
    inside: str = ""  # the job within whose allocation it is; empty: it is in none
    slots: int = 0  # so many devices will be plugged into it while it runs
    slot_mb: int = 0  # the largest region of shared memory among them
    network: str = ""  # empty: the usual one
    job: str = ""  # whose own machine it is, and nobody else's; empty: everybody's
    user: str = ""  # the owner of that job


class FleetState(StrEnum):
    """How far an order is."""

    WAITING = "waiting"  # for room, or for an order that came before it
    MAKING = "making"
    READY = "ready"  # every member takes jobs
    UNDOING = "undoing"  # one member could not be made: all go again
    FAILED = "failed"  # nothing of it is left; the reason is kept
    LEAVING = "leaving"  # somebody deleted it
    GONE = "gone"  # nothing of it is left; its record is dropped


@dataclass(frozen=True, slots=True)
class Fleet:
    """One order for `size` instances. Times in epoch seconds, 0 for what has not happened.

    `image`, `method` and `flavour` are empty for what the policy file says. `job`: whose own machines
    these are, and nobody else's; empty: everybody's. `hosts`: where each of them is, within the
    allocation of that job; empty: wherever there is room, as `company` says. `members`:
    the names that it was given so far.
    """

    id: str
    size: int
    state: FleetState
    ordered_s: float
    image: str = ""
    method: CloneMethod | None = None
    flavour: Flavour | None = None
    job: str = ""
    hosts: tuple[str, ...] = ()
    company: Company = Company.ANY
    members: tuple[str, ...] = ()
    begun_s: float | None = None  # its first member was begun
    all_begun_s: float | None = None  # its last member was begun for the first time
    ready_s: float | None = None  # its last member was ready
    over_s: float | None = None  # nothing of it was left
    retries: int = 0  # members that were begun anew
    reason: str = ""

    @property
    def growing(self) -> bool:
        """Return True if instances are still to be made for it."""
        return self.state in (FleetState.WAITING, FleetState.MAKING)

    @property
    def settled(self) -> bool:
        """Return True if nothing is to be done about it."""
        return self.state in (FleetState.READY, FleetState.FAILED)
