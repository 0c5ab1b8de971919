"""Whom a change concerns: the rules by which one change marks others in the work queue.

Whoever is marked is looked at with the next plan. What is forgotten here waits until a full pass finds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import ON_CPU, ManagedNode, Phase, checkpointed
from backfill.core.model.pilots import slot_of_name
from backfill.core.queue import (
    BUDGET,
    FLEETS,
    LIVENESS,
    NEW_MACHINES,
    PROMISES,
    SCALE,
    SUPPLY,
    ChangeMarks,
    Entity,
    Kind,
    Topic,
    WorkQueue,
)

if TYPE_CHECKING:
    from backfill.core.picture import Picture

# Kinds of calls after which pilots count differently.
_PILOTS = frozenset({"SubmitPilot", "WithdrawPilot", "TellPilot"})


class Concerns:
    """Finds whom a change of the world concerns. `World.apply` tells it what has changed, and has the queue
    take what was found."""

    def __init__(self, world: Picture) -> None:
        self._world = world
        self.marks = ChangeMarks()  # found, and not yet taken by the queue

    @property
    def _queue(self) -> WorkQueue:
        """Return the queue that the world has now: a plan from scratch has its own."""
        return self._world.queue

    def slurm_node_moved(self, name: str, *, came_or_went: bool) -> None:
        """Slurm shows the node otherwise than before: ours, a host's, or one whose name may be free."""
        self.mark_name(name)
        self._mark_fellows(name)
        host = self._world.host_of_node(name)
        if host is not None:
            self.host_moved(host)
            self._mark_claims(host)
        if name in self._world.managed and (job_id := self._world.managed[name].job) in self._world.machines:
            self._mark_machines(job_id)
            self._booting_counts_anew((name,))
        if came_or_went or name in self._world.managed:
            self._mark_scale()
            self._mark_fleets()
        if came_or_went:
            self._mark_if_silent()
            self.marks.topics.add(Topic.SILENCE)
            self._name_moved(name)

    def memory_counted(self) -> None:
        """Slurm shows only now whether memory keeps jobs apart: they may need fewer instances, or more."""
        self._mark_scale()

    def mark_name(self, name: str) -> None:
        """Mark the node or instances of this name."""
        if name in self._world.managed or name in self._queue.names or self._world.fleet.places_of(name):
            self._mark_node(name)
        self._mark_if_silent(name)

    def _mark_node(self, name: str) -> None:
        self.marks.nodes.append(name)
        if self._world.claims:
            for job_id in self._world.claim_index.at(name):
                self.marks.entities.append(Entity(Kind.CLAIM, job_id))

    def _mark_if_silent(self, name: str = "") -> None:
        """Nodes are set down by those that are silent: by this one, or by all of them."""
        silent = self._world.silent
        if silent and (not name or name in silent):
            self.marks.entities.append(LIVENESS)

    def _name_moved(self, name: str) -> None:
        self.marks.names.append(name)

    def _mark_budget(self) -> None:
        if self._queue.budgets:
            self.marks.entities.append(BUDGET)

    def _mark_fleets(self) -> None:
        if self._world.fleets:
            self.marks.entities.append(FLEETS)

    def host_moved(self, host: str) -> None:
        """Something about a host, or on it, is different: that concerns all who use its room."""
        world, marks = self._world, self.marks
        marks.nodes.extend(world.fleet.all_names_on(host))
        if world.machines:
            for job_id in {world.managed[name].job for name in world.fleet.names_on(host)}:
                marks.nodes.extend(self._members(job_id))  # they stand still and go on together
        self._mark_claims(host, waiting=True)
        known = world.hosts.get(host)
        if known is not None and known.parents is not None and (self._queue.cloning or world.fleets):
            marks.entities.append(Entity(Kind.PARENTS, host))
        if host in world.burst:
            self._mark_scale()
        marks.hosts.append(host)

    def _mark_claims(self, host: str, *, waiting: bool = False) -> None:
        """Claims on the host; or those that wait for its room: no others ask what of ours is there."""
        if not self._world.claims:
            return
        for job_id in self._world.claim_index.on(host):
            if not waiting or self._world.claims[job_id].waiting:
                self.marks.entities.append(Entity(Kind.CLAIM, job_id))

    def host_seen(self, host: str) -> None:
        """Mark whom a host concerns that looks different: if it is new, its instances count from now on."""
        self.host_moved(host)
        self._mark_claims(host)
        self._mark_scale()
        self._mark_fleets()
        self._mark_if_silent()
        self.marks.topics.add(Topic.REMOVALS)

    def all_machines_moved(self) -> None:
        """Mark all jobs with machines of their own: what hosts can ever carry is different."""
        for job_id in self._world.machines:
            self._mark_machines(job_id)

    def instance_moved(self, host: str, name: str) -> None:
        """Mark whom an instance concerns that its hypervisor shows otherwise than before."""
        self._mark_node(name)
        self.host_moved(host)
        node = self._world.managed.get(name)
        if node is not None:
            self._companions_moved(node)
        if node is None or node.generation == 0 or not self._world.fleet.places_of(name):
            self._mark_scale()
            self._mark_fleets()

    def job_moved(self, before: Job | None, after: Job | None) -> None:
        """Mark whom a job concerns that looks different: its nodes, where it is held, and the queue."""
        world = self._world
        job = after or before
        assert job is not None
        nodes = {name for one in (before, after) if one is not None for name in one.nodes}
        for name in nodes:
            self._jobs_moved_on(name)
        self.marks.nodes.extend(world.fleet.holders(job.id))
        for job_id in {job.id, str(job.raw_id)}:
            if job_id in world.claims:
                self.marks.entities.append(Entity(Kind.CLAIM, job_id))
        if job.id in world.machines:
            self._owner_moved(job.id, came_or_went=before is None or after is None)
        waited = any(one is not None and one.state is JobState.PENDING for one in (before, after))
        if waited or job.id in world.job_index.active_asking:
            self.marks.entities.append(NEW_MACHINES)
        if ours := any(name in world.managed for name in nodes):
            self._mark_budget()
        if waited or ours or slot_of_name(job.name) is not None:  # what only has a pilot's name is in its way
            self._mark_scale()

    def _jobs_moved_on(self, name: str) -> None:
        """Other jobs than before are on a node, or they look different."""
        node, host = self._world.managed.get(name), self._world.host_of_node(name)
        if node is not None or name in self._queue.names or self._world.fleet.places_of(name):
            self._mark_node(name)
        if node is not None:
            self.host_moved(node.host)
            if node.fleet:
                self._mark_fleets()  # one that goes waits for the jobs on its members
        elif host is not None:
            self.host_moved(host)
        if host is not None:
            self._mark_claims(host)

    def claim_moved(self, job_id: str, hosts: Iterable[str]) -> None:
        """Mark whom a claim concerns: a job has got hosts, or the claim is answered or over."""
        self.marks.entities.append(Entity(Kind.CLAIM, job_id))
        if job_id in self._world.machines:
            self._mark_machines(job_id)
        for host in hosts:
            self.host_moved(host)
            self._mark_claims(host)

    def record_moved(self, before: ManagedNode | None, after: ManagedNode | None) -> None:
        """Mark whom a node of ours concerns whose record is new, different or gone."""
        node = after or before
        assert node is not None
        hosts = {host for one in (before, after) if one is not None for host in one.hosts}
        self._mark_node(node.name)
        for host in hosts:
            self.host_moved(host)
        self._companions_moved(node)
        for job in {one.job for one in (before, after) if one is not None} & self._world.machines.keys():
            self._mark_machines(job)
        if before is not None and (before.held != node.held or before.order != node.order):
            self._companions_moved(before)
        self._mark_scale()
        self._mark_fleets()
        self._mark_if_silent(node.name)
        old, new = (None if one is None else one.phase for one in (before, after))
        if old is not new:
            self._name_moved(node.name)
            self._mark_budget()
            self.marks.topics.add(Topic.BOOTS)
        if (old in ON_CPU) is not (new in ON_CPU) or (old is Phase.MOVING) is not (new is Phase.MOVING):
            self.marks.topics.add(Topic.ON_CPU)
        if old in (Phase.REMOVING, Phase.DRAINING) and old is not new:
            self.marks.topics.add(Topic.REMOVALS)
        if before is not None and checkpointed(before):
            self.marks.topics.add(Topic.CHECKPOINTS)

    def _companions_moved(self, node: ManagedNode) -> None:
        """Nodes that share a job with it, or the order of a checkpoint, look at it."""
        world = self._world
        if node.order is not None:
            self.marks.nodes.extend(name for name in node.order.members if name in world.managed)
        self._mark_fellows(node.name)
        for held in node.held:
            self.marks.nodes.extend(world.fleet.holders(held.id))
        if node.job:
            self._mark_machines(node.job)
            self.marks.topics.add(Topic.BOOTS)  # it may have done its part

    def _mark_fellows(self, name: str) -> None:
        """Mark the nodes of ours that share a job with the node of this name, whoever's that is."""
        for job in self._world.jobs_on(name):
            if len(job.nodes) > 1:
                self.marks.nodes.extend(fellow for fellow in job.nodes if fellow in self._world.managed)

    def call_moved(self, kind: str, name: str, host: str) -> None:
        """Mark whom a call about a node or a host concerns: it was begun, or is over."""
        world = self._world
        self.mark_name(name)
        if name in world.machines:
            self._mark_machines(name)
            self.marks.nodes.extend(self._members(name))
            self._booting_counts_anew(self._members(name))
        if name in world.hosts:
            self.host_moved(name)
            self.marks.topics.add(Topic.BOOTS)
        if host:
            self.host_moved(host)
        node = world.managed.get(name)
        self._mark_fellows(name)  # also where no record has it: it may be closed for them
        if node is not None:
            if node.host != host:
                self.host_moved(node.host)
            self._companions_moved(node)
        self._mark_by_kind(kind)
        self._mark_fleets()

    def _mark_by_kind(self, kind: str) -> None:
        if kind == "SuspendInstance":
            self.marks.topics.add(Topic.DISK)
        if kind in _PILOTS:
            self.marks.entities.append(SUPPLY)

    def machines_moved(self, job_id: str, before: JobMachines | None, after: JobMachines | None) -> None:
        """Mark whom a job's own machines concern: its other components, and those that wait for their turn.

        Who waits for machines of other users is no concern of one who may have no more himself.
        """
        index = self._world.machine_index
        self._mark_machines(job_id)
        for other in index.fellows(job_id):
            self._mark_machines(other.job)
        old, new = (None if one is None else (one.fleet, one.waits) for one in (before, after))
        if old != new:
            self.marks.topics.add(Topic.TURN)
        if before is not None and before.fleet and (after is None or not after.fleet):
            for waiting in index.waiting_of(before.user):
                self._mark_machines(waiting)
        self.marks.entities.append(NEW_MACHINES)
        self.marks.nodes.extend(self._members(job_id))
        if before is not None and job_id not in self._world.jobs:
            self._owner_moved(job_id, came_or_went=True)
        self._mark_fleets()
        self._mark_scale()

    def _owner_moved(self, job_id: str, *, came_or_went: bool) -> None:
        """Mark a job's own machines; where it came or went, these may count as within it, or no longer."""
        self._mark_machines(job_id)
        for name in self._members(job_id) if came_or_went else ():
            self._mark_node(name)
            self.host_moved(self._world.managed[name].host)

    def _booting_counts_anew(self, names: Iterable[str]) -> None:
        """Mark who may boot, or not, as a job's own machines wait for their fellows, or no longer do."""
        self.marks.hosts.extend(self._world.managed[name].host for name in names)
        self.marks.topics.add(Topic.BOOTS)

    def _mark_machines(self, job_id: str) -> None:
        self.marks.entities.append(Entity(Kind.MACHINES, job_id))

    def _members(self, job_id: str) -> list[str]:
        own = self._world.machines.get(job_id)
        fleet = None if own is None else self._world.fleets.get(own.fleet)
        return [] if fleet is None else [name for name in fleet.members if name in self._world.managed]

    def fleet_moved(self, members: Iterable[str], job_id: str = "") -> None:
        """Mark whom an order of a fleet concerns that is new, further or over; a job's own has its id."""
        if job_id in self._world.machines:
            self._mark_machines(job_id)
        self.marks.entities.append(FLEETS)
        self._mark_scale()
        self.marks.nodes.extend(name for name in members if name in self._world.managed)

    def outcome_doubted(self, name: str, hosts: Iterable[str]) -> None:
        """Mark who waits for room: where an instance is has become uncertain, or certain again."""
        self.mark_name(name)
        for host in hosts:
            self.host_moved(host)
        for claim in self._world.claims.values():
            if claim.waiting:
                self.marks.entities.append(Entity(Kind.CLAIM, claim.job_id))

    def _mark_scale(self) -> None:
        """How many instances, and how many pilots for them, there should be."""
        self.marks.entities.append(SCALE)
        if self._queue.promised or self._world.fleet.count_in(Phase.PARKED):
            self.marks.entities.append(PROMISES)
        if self._queue.supplies:
            self.marks.entities.append(SUPPLY)
