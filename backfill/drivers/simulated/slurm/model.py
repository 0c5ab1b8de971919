"""The mutable things in the simulated slurmctld: partitions, jobs and nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.job_machines import asked
from backfill.drivers.simulated.events import SimEvent


@dataclass(frozen=True, slots=True)
class Partition:
    """`feature` None means Nodes=ALL, otherwise the NodeSet of the nodes with that feature."""

    name: str
    tier: int = 1
    feature: str | None = None

    def has(self, features: tuple[str, ...]) -> bool:
        return self.feature is None or self.feature in features


@dataclass(frozen=True, slots=True)
class SimReservation:
    """A node is kept from `start_s` to `end_s`; `maintenance`: for work on the node itself."""

    start_s: float
    end_s: float
    maintenance: bool = True


class Viewed:
    """Forgets its frozen picture whenever an attribute changes: pictures are asked for often."""

    _view: object = None

    def __setattr__(self, name: str, value: object) -> None:
        own = self.__dict__
        own["_view"] = None
        own[name] = value


@dataclass(eq=False)
class SimJob(Viewed):
    """A job in the simulated slurmctld. `run_s`: computing time that each attempt needs."""

    id: str
    raw_id: int
    order: int
    partition: str
    run_s: float
    submit_s: float
    name: str = ""
    user: str = "user"
    account: str = ""
    qos: str = ""
    cpus: int = 1  # over all nodes
    memory_mb: int = 0  # on each node
    memory_by_cpu: bool = False  # as Slurm shows it; it takes as much on each node all the same
    num_nodes: int = 1
    priority: int = 1  # 0 is how Slurm shows a held job
    time_limit_s: float | None = None
    requeue: bool = True
    features: str = ""
    required_nodes: tuple[str, ...] = ()
    exclusive: bool = False
    interactive: bool = False
    state: JobState = JobState.PENDING
    nodes: tuple[str, ...] = ()
    whole_cpus: int = 0  # of its nodes, while it has them to itself: so many Slurm shows then
    completing: tuple[str, ...] = ()  # nodes that have not confirmed the end
    configuring: bool = False
    held: bool = False
    held_by_owner: bool = False  # who alone can then release it, but for an admin
    pins: tuple[str, ...] = ()  # nodes of which it may have no others
    within: str = ""  # the job in whose machines it is to run
    restarts: int = 0
    eligible_s: float = 0.0
    start_s: float = 0.0
    end_s: float = 0.0
    clock_s: float = 0.0  # since when its time limit is counted down
    paid_s: float = 0.0  # run time before that
    admin_comment: str = ""
    comment: str = ""
    heard: list[str] = field(default_factory=list)  # at its owner's terminal
    signals: list[str] = field(default_factory=list)  # that were sent to its processes
    heeds_s: float | None = None  # so long after a signal it ends; None: it does not heed them
    stop_failed: bool = False  # the stop signal could not even be sent
    het: bool = False  # a component of a heterogeneous job: Slurm suspends none
    suspended_by: str = ""  # somebody else; empty: nobody, or we
    limit: SimEvent | None = None
    queued: int = 0  # which of its entries in the queue is the valid one

    @property
    def cpus_per_node(self) -> int:
        return -(-self.cpus // self.num_nodes)

    @property
    def suspended_here(self) -> bool:
        """Return True if we have suspended it, and nobody else."""
        return self.state is JobState.SUSPENDED and not self.suspended_by

    def view(self) -> Job:
        """Show the job as Slurm would now."""
        if not isinstance(self._view, Job):
            self._view = self._picture()
        return self._view

    def _picture(self) -> Job:
        flags = {"CONFIGURING"} if self.configuring else set()
        if self.completing:
            flags.add("COMPLETING")
        pending = self.state is JobState.PENDING
        holder = "JobHeldUser" if self.held_by_owner else "JobHeldAdmin"
        machines, fault = asked(self.admin_comment, self.comment)
        return Job(
            id=self.id,
            raw_id=self.raw_id,
            partition=self.partition,
            state=self.state,
            flags=frozenset(flags),
            qos=self.qos,
            user=self.user,
            account=self.account,
            name=self.name,
            nodes=self.completing or self.nodes,  # of one that ends Slurm shows those that have not confirmed
            num_nodes=self.num_nodes,
            cpus=self.whole_cpus if self.nodes and self.exclusive else self.cpus,
            memory_mb=self.memory_mb,
            memory_by_cpu=self.memory_by_cpu,
            priority=0 if self.held else self.priority,
            submit_s=self.submit_s,
            eligible_s=self.eligible_s,
            start_s=self.start_s,
            time_limit_s=self.time_limit_s,
            exclusive=self.exclusive,
            interactive=self.interactive,
            restarts=self.restarts,
            requeue=self.requeue,
            reason=(holder if self.held else "Resources") if pending else "None",
            required_nodes=self.required_nodes,
            features=self.features,
            comment=self.comment,
            machines=machines,
            machines_fault=fault,
        )


@dataclass(eq=False)
class SimNode(Viewed):
    """A node in the simulated slurmctld; `host` names the hardware of a bare-metal node."""

    name: str
    order: int
    cpus: int
    memory_mb: int
    address: str
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    host: str | None = None
    home: str = ""  # where its slurmd really is
    registered: bool = False
    down: bool = False
    drain: str | None = None  # the reason while drained
    drain_by: str = ""  # the user who set it; empty: we, or slurmctld
    opened_s: float | None = None  # when an admin lifted a drain of ours, if we have not drained it since
    silent: bool = False  # NOT_RESPONDING
    reason: str = ""
    boot_time_s: float = 0.0
    heard_s: float = 0.0  # when slurmctld had its last answer; 0: never
    planned_s: float = 0.0
    maintenance_s: float = 0.0
    reservations: tuple[SimReservation, ...] = ()  # that are not over
    kept: str = ""  # the flag of the one that has begun
    pinned: str = ""  # the job that alone may start here
    within: str = ""  # the job whose owner's jobs alone may start here, if they name it
    owner: str = ""  # who that is
    cpus_used: int = 0
    memory_used_mb: int = 0
    jobs: dict[str, SimJob] = field(default_factory=dict)
    watch: list[SimEvent] = field(default_factory=list)
    pictures: dict[object, Node] = field(default_factory=dict)

    def view(self) -> Node:
        """Show the node as Slurm would now; suspended jobs leave it IDLE (measured)."""
        if not isinstance(self._view, Node):
            self._view = self._picture()
        return self._view

    def __post_init__(self) -> None:
        self.home = self.home or self.address

    @property
    def lost(self) -> bool:
        """slurmctld looks for its slurmd where it is not."""
        return self.address != self.home

    @property
    def schedulable(self) -> bool:
        usable = self.registered and not (self.down or self.silent or self.kept)
        return usable and self.drain is None

    def kept_before(self, end_s: float) -> bool:
        """Return True if a reservation begins before a job that ends then is over."""
        return any(one.start_s < end_s for one in self.reservations)

    def look_ahead(self, now_s: float) -> None:
        """Reservations that are over are forgotten; what is left is what Slurm tells."""
        left = tuple(one for one in self.reservations if one.end_s > now_s)
        self.reservations = left
        planned = [one.start_s for one in left if not one.maintenance]
        maintained = [one.start_s for one in left if one.maintenance]
        self.planned_s = min(planned, default=0.0)
        self.maintenance_s = min(maintained, default=0.0)
        begun = {one.maintenance for one in left if one.start_s <= now_s}
        self.kept = "MAINTENANCE" if True in begun else "RESERVED" if begun else ""

    def recount(self, *, counts_memory: bool) -> None:
        """Add up what its jobs use: a suspended one frees its CPUs but not its memory."""
        cpus = memory_mb = 0
        whole = False
        for job in self.jobs.values():
            memory_mb += job.memory_mb if counts_memory else 0
            if job.state is not JobState.SUSPENDED:
                cpus += job.cpus_per_node
                whole = whole or job.exclusive
        cpus = self.cpus if whole else cpus
        # Set past `__setattr__`: a picture's worth of nodes is counted whenever a wide job moves.
        self.__dict__.update(cpus_used=cpus, memory_used_mb=memory_mb, _view=None)

    def _base(self) -> NodeBase:
        if self.down:
            return NodeBase.DOWN
        if not self.registered:
            return NodeBase.FUTURE
        if self.cpus_used <= 0:
            return NodeBase.IDLE
        return NodeBase.ALLOCATED if self.cpus_used >= self.cpus else NodeBase.MIXED

    def _picture(self) -> Node:
        odd = self.drain is not None or self.silent or self.kept or self.completing_any
        if self.host is None or odd:
            return self._draw()
        # Bare metal looks as it did before most of the time.
        used = self.cpus_used, self.memory_used_mb
        look = (used, self._base(), self.reason, self.address, self.boot_time_s)
        known = self.pictures.get(look)
        ahead = (self.planned_s, self.maintenance_s)
        if known is None or (known.planned_s, known.maintenance_s) != ahead:
            known = self.pictures[look] = self._draw()
        return known

    @property
    def completing_any(self) -> bool:
        """Return True if a job that has ended here is not through yet."""
        return bool(self.jobs) and any(job.completing for job in self.jobs.values())

    def _draw(self) -> Node:
        flags = set() if self.host is not None else {"DYNAMIC_NORM"}
        if self.drain is not None:
            flags.add("DRAIN")
        if self.silent:
            flags.add("NOT_RESPONDING")
        if self.kept or self.pinned:
            flags.add(self.kept or "RESERVED")
        if self.completing_any:
            flags.add("COMPLETING")
        return Node(
            name=self.name,
            base=self._base(),
            flags=frozenset(flags),
            reason=self.drain if self.drain is not None else self.reason,
            reason_by=self.drain_by if self.drain is not None else "",
            address=self.address,
            cpus=self.cpus,
            cpus_allocated=self.cpus_used,
            memory_mb=self.memory_mb,
            memory_allocated_mb=self.memory_used_mb,
            partitions=self.partitions,
            features=self.features,
            boot_time_s=self.boot_time_s,
            slurmd_start_s=self.boot_time_s,
            planned_s=self.planned_s,
            maintenance_s=self.maintenance_s,
        )
