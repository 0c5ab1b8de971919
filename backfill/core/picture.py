"""What is known now, as everybody may read it: what the outside shows, and the tables of our own steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from backfill.core.learning import Owners
from backfill.core.model.clock import Move
from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.fleet import Fleet, Host, Instance
from backfill.core.model.job_machines import THERE, JobMachines
from backfill.core.model.lifecycle import HeldJob, ManagedNode
from backfill.core.model.operations import HostAllocation, Operation, Source, UncertainOutcome
from backfill.core.model.pilots import PilotIndex
from backfill.core.model.quantities import WriteRate
from backfill.core.model.readiness import Streak
from backfill.core.model.refusals import Code, Reason, Words, because
from backfill.core.policies.limits import Limits
from backfill.core.queue import WorkQueue
from backfill.core.remainders import ReadyIndex
from backfill.core.tables import CallIndex, ClaimIndex, FleetIndex, MachineIndex
from backfill.core.undo import Bag, Table, UndoLog

_TOMBSTONE_S = 120.0
# Slurm tells when a job began in whole seconds.
_SURELY_LATER_S = 2.0


# What demand asks of a waiting job: jobs of which all of this is equal count alike.
Wish = tuple[str, float, str, int, int, int, bool, float | None, bool, str]
_Line = tuple[str, Wish]  # its partition first


class JobIndex:
    """All known jobs with the two look-ups that planning needs. Only the world changes it."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self._on: dict[str, set[str]] = {}  # node -> ids
        self.waiting_changes = 0  # so often another job than before waits, or it wants something else
        self.pending_changes = 0  # the same, and so often a waiting job looked different in any way
        self._pending: dict[str, dict[Wish, set[str]]] = {}  # partition -> wish -> ids
        self._gone: dict[str, float] = {}  # jobs that Slurm no longer knows, oldest first
        self.active_asking: set[str] = set()  # ids of those with nodes that ask for machines of their own
        self.held_asking: set[str] = set()  # ids of those that are held for such machines, by their word
        self._halted: set[str] = set()  # ids of those that were seen to run, and then suspended

    def put(self, job: Job) -> None:
        """Take in a new or changed job."""
        old = self.jobs.get(job.id)
        before = _line(old)
        halted = self.seen_to_halt(job) or (old is not None and old.state is JobState.RUNNING)
        self._forget(job.id)
        self.jobs[job.id] = job
        if halted and job.state is JobState.SUSPENDED and old is not None and old.restarts == job.restarts:
            self._halted.add(job.id)
        if job.holds_nodes:
            for node in job.nodes:
                self._on.setdefault(node, set()).add(job.id)
        self._note_asking(job)
        if before != (line := _line(job)):
            self._move(job.id, before, line)
            self.waiting_changes += 1
        if (before or line) and old != job:
            self.pending_changes += 1

    def drop(self, job_id: str, seen_s: float) -> None:
        """Forget a job that Slurm has forgotten, as was seen at `seen_s`."""
        self._forget(job_id)
        if (line := _line(self.jobs.pop(job_id, None))) is not None:
            self._move(job_id, line, None)
            self.waiting_changes += 1
            self.pending_changes += 1
        self._gone.pop(job_id, None)
        self._gone[job_id] = seen_s

    def bury(self, seen_s: float) -> list[str]:
        """Return ids of jobs gone for so long that no reading that was under way then brings them back."""
        buried = []
        for job_id, gone_s in self._gone.items():
            if seen_s - gone_s < _TOMBSTONE_S:
                break  # they are in the order of time
            buried.append(job_id)
        for job_id in buried:
            del self._gone[job_id]
        return [job_id for job_id in buried if job_id not in self.jobs]

    def seen_to_halt(self, job: Job) -> bool:
        """Return True if this daemon saw the suspended job run before."""
        return job.id in self._halted

    def on(self, node: str) -> list[Job]:
        """Return jobs that hold `node`, in order of their ids."""
        ids = self._on.get(node)
        return [self.jobs[i] for i in sorted(ids)] if ids else []

    def any_on(self, node: str | None) -> bool:
        """Return True if any job holds `node`."""
        return bool(self._on.get(node)) if node is not None else False

    def pending(self, partitions: Iterable[str]) -> Iterator[Job]:
        """Pending jobs of these partitions, in no order."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                for job_id in ids:
                    yield self.jobs[job_id]

    def kinds_pending(self, partitions: Iterable[str]) -> Iterator[tuple[Job, Collection[str]]]:
        """One of each kind of pending jobs that count alike, and the ids of all of that kind."""
        for partition in partitions:
            for ids in self._pending.get(partition, {}).values():
                yield self.jobs[next(iter(ids))], ids

    def partitions_waiting(self) -> set[str]:
        """Partitions in which jobs wait."""
        return {partition for partition, alike in self._pending.items() if alike}

    def _note_asking(self, job: Job) -> None:
        if job.active and _asks(job):
            self.active_asking.add(job.id)
        if job.state is JobState.PENDING and job.machines is not None and job.machines.held:
            self.held_asking.add(job.id)

    def _forget(self, job_id: str) -> None:
        old = self.jobs.get(job_id)
        if old is None:
            return
        self.active_asking.discard(job_id)
        self.held_asking.discard(job_id)
        self._halted.discard(job_id)
        for node in old.nodes:
            self._on.get(node, set()).discard(job_id)

    def _move(self, job_id: str, before: _Line | None, after: _Line | None) -> None:
        """Put a job into another line; one that stays where it is, is not touched: others have its set."""
        if before is not None:
            alike = self._pending[before[0]]
            alike[before[1]].discard(job_id)
            if not alike[before[1]]:
                del alike[before[1]]
        if after is not None:
            self._pending.setdefault(after[0], {}).setdefault(after[1], set()).add(job_id)


def _line(job: Job | None) -> _Line | None:
    """Return where the job waits, and as what kind; None if it does not wait."""
    return (job.partition, _wish(job)) if job is not None and job.state is JobState.PENDING else None


def _wish(job: Job) -> Wish:
    begins_s = job.eligible_s if job.reason == "BeginTime" else 0.0
    size = (job.cpus, job.num_nodes, job.memory_mb, job.exclusive)
    return (job.reason, begins_s, job.qos, *size, job.time_limit_s, _asks(job), job.features)


def named(job: Job, name: str) -> bool:
    """Return True if this run of the job was told that the machine is within its allocation."""
    return job.machines is not None and name in job.machines.at and job.machines.run == job.restarts


def _asks(job: Job) -> bool:
    """Return True if it brings a word for machines of its own, whether that can be read or not."""
    return job.machines is not None or job.machines_fault is not None


class Picture:
    """What is known now, to be read: nobody but `World.apply` changes it.

    With its work queue, in which whoever reads may mark and keep what the next plan needs.
    """

    def __init__(self) -> None:
        self.now_s = 0.0  # our time, which does not jump when somebody sets the machine's clock
        self.ahead_s = 0.0  # by so much it is ahead of that clock
        self.clock_moves: tuple[Move, ...] = ()  # how that clock was set, oldest first
        self.time_moves: tuple[Move, ...] = ()  # where our time of one daemon is not the next one's
        self.away = (0.0, 0.0)  # from when at the earliest there was no daemon, and when this one began
        self.undo = UndoLog()
        # What has to be looked at, and what plans keep for the next one; what is learnt of owners of jobs.
        self.queue, self.owners = WorkQueue(self), Owners()
        self.nodes: dict[str, Node] = {}
        self.silent: dict[str, float] = {}  # nodes that do not answer Slurm, and since when
        self.job_index = JobIndex()
        self.jobs: Mapping[str, Job] = self.job_index.jobs
        self.hosts: dict[str, Host] = {}
        self.fleet = FleetIndex(self.undo)
        # By (host, name).
        self.instances: Mapping[tuple[str, str], Instance] = self.fleet.instances
        self.managed: Mapping[str, ManagedNode] = self.fleet.managed
        self.ready = ReadyIndex(self.undo)
        # Hosts that are no Slurm nodes; hosts on which guests are becoming parents of clones.
        self.burst, self.with_parents = set[str](), set[str]()
        self.claim_index = ClaimIndex(self.undo)
        self.claims: Mapping[str, HostAllocation] = self.claim_index.claims
        self.calls = CallIndex(self.undo)
        self.operations: Mapping[str, Operation] = self.calls.operations
        self.sources, self.odd = dict[str, Source](), set[str]()  # odd: that show what is not believed
        self.barred: dict[str, str] = {}  # by what we are kept from acting, and why
        self.doubts: Table[str, UncertainOutcome] = Table(self.undo)  # by managed node
        self.fleets: Table[str, Fleet] = Table(self.undo)  # orders by id
        self.pilots, self.machine_index = PilotIndex(), MachineIndex(self.undo)
        self.machines: Mapping[str, JobMachines] = self.machine_index.machines  # a job's own, by job
        # By job: its pinned nodes, as the call that did it named them; empty: taken away. Not kept for
        # the next daemon, which does it once more.
        self.pinned: Table[str, str] = Table(self.undo)
        self.closed: dict[str, str] = {}  # host or node -> why a person closed it
        self.off: dict[str, str] = {}  # host that is off for good -> how a person knows
        self.kept: dict[str, tuple[int, str]] = {}  # host -> so many may stay there, and why
        # By name: the highest generation that was ever used, and the highest that was removed.
        self.generations, self.removed = (Table[str, int](self.undo) for _ in range(2))
        self.streaks: Table[str, Streak] = Table(self.undo)  # failures in a row: by host, and by image
        self.rates: dict[str, WriteRate] = {}  # by host: how fast memory reaches the disk
        self._host_of_node: dict[str, str] = {}
        # By node of ours: jobs that Slurm does not show any more there, and did not show to have ended.
        # By job with machines of its own: when it was first read that Slurm does not show it any more.
        self._vanished, self._missing_s = (
            Table[str, dict[str, HeldJob]](self.undo),
            Table[str, float](self.undo),
        )
        # Nodes, and instances, that calls of ours have deleted, as their removal comes to its end.
        self._deleted, self._destroyed_here = (Bag[tuple[str, int]](self.undo) for _ in range(2))
        self._seen: dict[tuple[str, str], float] = {}
        # Since when we see Slurm without a gap: deadlines do not run while nobody could act. When a person
        # last freed a name that had failed.
        self.sighted_since_s = self.freed_s = 0.0
        # By node: when it was read, since when it is as it is, and as free, and when the latest of its jobs
        # vanished; by job: when its run was first shown at work where it is.
        self._node_read, self._node_since, self._standing_since, self._vanished_s, self._at_work_s = (
            dict[str, float]() for _ in range(5)
        )

    # --- reading -------------------------------------------------------------------------------

    def came_late(self, node: ManagedNode, job: Job) -> bool:
        """Return True if Slurm gave the job to a node whose instance stood still, and has since then.

        Slurm's word for when it began is taken by a clock that somebody may have set meanwhile: then
        nobody knows.
        """
        still_s = self.fleet.still_since_s(node.host, node.name)
        shown_s = self._at_work_s.get(job.id)
        if still_s is None or shown_s is None or self.clock_moves:
            return False
        return still_s + _SURELY_LATER_S <= job.start_s <= shown_s + _SURELY_LATER_S

    def jobs_on(self, node: str) -> list[Job]:
        """Return jobs that Slurm shows on a node, in order of their ids."""
        return self.job_index.on(node)

    def suspended_by_others(self, job: Job) -> bool:
        """Return True if this daemon saw the suspended job run before, and never asked for that itself."""
        return self.job_index.seen_to_halt(job) and not self.calls.asked_to_stop(job.id)

    def deleted(self, name: str, generation: int) -> bool:
        """Return True if a call of ours has deleted the node of this generation from Slurm."""
        return (name, generation) in self._deleted

    def destroyed_here(self, name: str, generation: int) -> bool:
        """Return True if a call of ours has left nothing of this generation's instance on its host."""
        return (name, generation) in self._destroyed_here

    def vanished_on(self, node: str) -> tuple[HeldJob, ...]:
        """Return jobs that were on a node of ours and of which Slurm shows nothing any more."""
        return tuple(self._vanished.get(node, {}).values())

    def vanished_s(self, node: str) -> float:
        """Return when it was read of the latest such job of a node; 0 if there is none."""
        return self._vanished_s.get(node, 0.0) if node in self._vanished else 0.0

    def missing_since_s(self, job_id: str) -> float:
        """Since when Slurm has not shown a job that it does not show now; -inf if it had shown its end."""
        since_s = self._missing_s.get(job_id, self.sighted_since_s)
        return since_s if since_s == -inf else max(since_s, self.sighted_since_s)

    def places_of(self, name: str) -> list[Instance]:
        """Every host's view of one instance; more than one only while it moves."""
        return [place for place in self.fleet.places_of(name) if place.host in self.hosts]

    def host_of_node(self, node: str) -> str | None:
        """Return the host whose own Slurm node this is."""
        return self._host_of_node.get(node)

    def taken(self, host: str) -> bool:
        """Return True if a job has the host's own node, or was just given it, or a person closed it."""
        known = self.hosts.get(host)
        node = None if known is None else known.node
        return host in self.closed or self.job_index.any_on(node) or self.claim_index.any_on(host)

    def lost(self, host: str) -> bool:
        """Return True if nothing is on the host any more: it is silent, and people say that it is off."""
        known = self.hosts.get(host)
        return host in self.off and known is not None and not known.reachable

    def takers(self, host: str) -> tuple[str, ...]:
        """Return ids of the jobs that have, or were just given, the host's own node."""
        if not self.taken(host):
            return ()
        node = self.hosts[host].node if host in self.hosts else None
        holders = self.jobs_on(node) if node is not None else []
        found = {j.id for j in holders}
        # A hook knows an array task by its raw number only: 14 and 12_3 are one job.
        known = found | {str(j.raw_id) for j in holders}
        found.update(job_id for job_id in self.claim_index.on(host) if job_id not in known)
        return tuple(sorted(found))

    def inside(self, node: ManagedNode) -> bool:
        """Return True if it is within the allocation of its job, which has the host and runs now."""
        job = self.jobs.get(node.job) if node.inside else None
        if job is None:
            return node.inside and self._still_inside(node)
        if job.state is not JobState.RUNNING or "COMPLETING" in job.flags:
            return False
        own, known = self.machines.get(node.job), self.hosts.get(node.host)
        if job.restarts != own.restarts if own is not None else not named(job, node.name):
            return False
        return known is not None and known.node in job.nodes

    def _still_inside(self, node: ManagedNode) -> bool:
        """Return True if Slurm only does not show its job, and has given the host to nobody else since."""
        own, known = self.machines.get(node.job), self.hosts.get(node.host)
        if own is None or own.state not in THERE or own.spawning_s is None:
            return False
        if known is None or known.node is None:
            return False
        since_s = own.spawning_s
        others = [claim.since_s for claim in self.claims_on(node.host)]
        others += [job.start_s for job in self.jobs_on(known.node)]
        return all(other_s <= since_s for other_s in others)

    def surely_inside(self, node: ManagedNode) -> bool:
        """Return True if that was so after the latest job was given the host, as Slurm has shown."""
        known = self.hosts.get(node.host)
        if not self.inside(node) or known is None or known.node is None:
            return False
        read_s = self.node_read_s(known.node)
        return all(claim.since_s < read_s for claim in self.claims_on(node.host))

    def claims_on(self, host: str) -> list[HostAllocation]:
        """Return claims on the host."""
        return [self.claims[job_id] for job_id in self.claim_index.on(host)]

    def running(self, key: str) -> bool:
        """Return True if the operation is in flight."""
        operation = self.operations.get(key)
        return operation is not None and operation.running

    def arriving(self, host: str) -> bool:
        """Return True if an operation in flight, or one that failed and may yet have acted, may bring an
        instance onto this host's CPUs."""
        return self.calls.arriving(host) or any(host in d.hosts for d in self.doubts.values())

    def alone(self, hosts: Iterable[str]) -> bool:
        """Return True if nothing of ours is on these hosts, as each was read, or on its way to one."""
        if self.doubts:
            return False
        of_ours, arriving, read_s = self.fleet.any_on, self.calls.arriving, self.source_read_s
        return all(read_s(h) and not (of_ours(h) or arriving(h) or self.parents_starting(h)) for h in hosts)

    def all_parents_starting(self) -> int:
        """Return how many such guests there are on all hosts that answer."""
        asked = {key.split(":", 2)[1] for key in self.calls.under_way("MakeParent")}
        known = (self.hosts.get(host) for host in self.with_parents | asked)
        return sum(self.parents_starting(host.name) for host in known if host is not None and host.reachable)

    def parents_starting(self, host: str) -> int:
        """Return how many guests run there, or are just being started, to become parents of clones."""
        known, calls = self.hosts.get(host), self.calls.of(host)
        running = [key for key in calls if key.startswith("MakeParent") and self.running(key)]
        return max(len(running), len(known.parents_starting) if known is not None and known.parents else 0)

    def busy(self, name: str) -> bool:
        """Return True if an operation of this node is in flight, or may have acted although it failed."""
        return self.calls.busy(name) or name in self.doubts

    def seen_s(self, kind: str, name: str) -> float:
        """Return when the subject was last read; 0 if never. Kinds: node, job, host, instance."""
        return self._seen.get((kind, name), 0.0)

    def node_since_s(self, name: str) -> float:
        """Since when the node looks as it does now, or is gone; 0 if it was never seen."""
        return self._node_since.get(name, 0.0)

    def standing_since_s(self, name: str) -> float:
        """Since when the node is as free, or as taken, as it is now; 0 if it was never seen."""
        return self._standing_since.get(name, 0.0)

    def node_read_s(self, name: str) -> float:
        """Return when the node and the jobs on it were last read, changed or not."""
        slurm = self.sources.get("slurm")
        return max(self._node_read.get(name, 0.0), slurm.seen_s if slurm else 0.0)

    @property
    def clock_s(self) -> float:
        """Return what the machine's clock says now."""
        return self.now_s - self.ahead_s

    def created_lately(self, within_s: float) -> int:
        """Return how many instances we began to make less than so long ago."""
        return self.fleet.created_since(self.now_s - within_s)

    def destroyed_lately(self, within_s: float) -> int:
        """Count the instances whose work was given up less than so long ago."""
        return self.fleet.destroyed_since(self.now_s - within_s)

    def source_read_s(self, source: str) -> float:
        """Return when the latest complete reading of Slurm, or of a host, began; 0: never."""
        known = self.sources.get(source)
        return 0.0 if known is None else known.seen_s

    def fresh(self, source: str, stale_after_s: float) -> bool:
        """Return True if the source was read, and not longer ago than that."""
        known = self.sources.get(source)
        if known is None or known.seen_s == 0.0:
            return False
        return self.now_s - known.seen_s <= stale_after_s


def awaits_pin(world: Picture, node: ManagedNode) -> bool:
    """Return True while others could get into a job's own machine: it is not opened then."""
    pinned = world.pinned.get(node.job) or ""
    return bool(node.job) and f"{node.name}.{node.generation}" not in pinned.split(",")


def met(world: Picture, node: ManagedNode) -> bool:
    """Return True if Slurm has met its slurmd, which answers."""
    seen = world.nodes.get(node.name)
    return seen is not None and seen.slurmd_start_s > 0 and seen.responding


def waits_for_fellows(world: Picture, node: ManagedNode) -> bool:
    """Return True if a job's own machine has done its part, and is closed only until all are there."""
    return awaits_pin(world, node) and node.woken_since and met(world, node)


def stale(world: Picture, source: str, limits: Limits) -> Reason | None:
    """Return why our picture of `source` may not be acted upon, if it may not."""
    if world.fresh(source, limits.stale_after_s):
        return None
    seen = world.sources.get(source)
    if seen is None or seen.seen_s == 0.0:
        problem = seen.problem if seen is not None else ""
        return because(Code.NEVER_READ, source=source, said=Words(problem))
    return because(Code.STALE, source=source, age_s=world.now_s - seen.seen_s, said=Words(seen.problem))


def barred(world: Picture) -> Reason | None:
    """Return why we may do no more than give hosts back, if that is so."""
    if not world.barred:
        return None
    problems = sorted(world.barred.items())
    said = "; ".join(said if said.startswith(f"{by}: ") else f"{by}: {said}" for by, said in problems)
    return because(Code.BARRED, by=tuple(sorted(world.barred)), said=Words(said))
