"""The work queue: what has to be looked at again, now or at a certain time, and why.

`World.apply` tells it what has changed; the rules below say whom that concerns. Everything that
the next plan does not look at stays as it was found: its refusals, its awaited nodes, its wake.
A full pass looks at everything, whatever the rules say: it finds what a rule forgot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import ON_CPU, ManagedNode, Phase, checkpointed
from backfill.core.model.pilots import slot_of_name

if TYPE_CHECKING:
    from backfill.core.model.plan import Plan
    from backfill.core.model.refusals import Goal, Refusal
    from backfill.core.placement import Names, Rooms
    from backfill.core.policies.demand import QueueNeeds
    from backfill.core.policy import PolicySet
    from backfill.core.world import World


class Kind(IntEnum):
    """What can be looked at, in the order in which a plan does it."""

    CLAIM = auto()  # by job
    BUDGET = auto()
    PROMISES = auto()  # whose room is for stopped work next
    NODE = auto()  # by name: a managed node, and instances of that name that are none of it
    MACHINES = auto()  # a job's own, by job; without a name: jobs that ask for some and have none yet
    FLEETS = auto()
    SCALE = auto()
    SUPPLY = auto()
    PARENTS = auto()  # by host
    LIVENESS = auto()


class Entity(NamedTuple):
    """One thing to look at. `name` is empty where there is only one of its kind."""

    kind: Kind
    name: str = ""


BUDGET, FLEETS, PROMISES = Entity(Kind.BUDGET), Entity(Kind.FLEETS), Entity(Kind.PROMISES)
NEW_MACHINES = Entity(Kind.MACHINES)
SCALE, LIVENESS, SUPPLY = Entity(Kind.SCALE), Entity(Kind.LIVENESS), Entity(Kind.SUPPLY)


# Kinds of calls after which pilots count differently.
_PILOTS = frozenset({"SubmitPilot", "WithdrawPilot", "TellPilot"})


class Topic(IntEnum):
    """What a step may wait for that is none of its entity's own: see `PlanBuilder.awaits`."""

    TIME = auto()  # any time passes: what is said tells how long something takes or lasts
    READING = auto()  # any source was read once more, with or without news
    ROOM = auto()  # the room that new instances would find on some host is another
    REMOVALS = auto()  # an instance has gone, or a host that some wait for has answered or fallen silent
    BOOTS = auto()  # an instance has booted or gone, or a parent of clones has
    ON_CPU = auto()  # more or fewer instances than before are at work
    DISK = auto()  # memory was written
    CHECKPOINTS = auto()  # one that stands still for a checkpoint, or came back badly, is a step further
    SILENCE = auto()  # a node has become silent, or answers again, or there are more nodes, or fewer


@dataclass(slots=True)
class Result:
    """What came of looking at an entity."""

    refusals: dict[tuple[str, Goal, str], Refusal] = field(default_factory=dict)
    watch: set[str] = field(default_factory=set)
    topics: set[Topic] = field(default_factory=set)
    wake_s: float = inf


_NOTHING = Result()


class Touched:
    """What has to be looked at again, in a table of which a plan changes a part tentatively."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.touched: set[str] = set(names)
        self._tried: set[str] = set()  # touched by the plan that is being made

    def touch(self, name: str) -> None:
        """Something about it has changed."""
        self.touched.add(name)
        self._tried.add(name)

    def begin(self) -> None:
        """From now on what is changed is tentative."""
        self._tried = set()

    def put_back(self) -> None:
        """Count as touched what was changed tentatively: it is as it was before."""
        self.touched.update(self._tried)

    def taken(self) -> set[str]:
        """All of it, which counts as looked at from now on."""
        names, self.touched = self.touched, set()
        return names


class WorkQueue:
    """Marks of what a plan has to look at; what is marked twice is looked at once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._marked: set[Entity] = set()
        self._nodes: dict[str, Entity] = {}  # by name
        self._order: list[Entity] = []  # a heap of all that are marked, and of some that are not
        self._results: dict[Entity, Result] = {}  # of what need not be looked at
        self._wakes: list[tuple[float, Entity]] = []  # a heap, with times that do not hold any more
        self._awaiting: dict[Topic, set[Entity]] = {topic: set() for topic in Topic}
        self._unasked: set[Entity] = set()  # what is marked by a full pass alone
        self.forgotten = 0  # so often a full pass has found what no rule had marked
        self.forgot = ""  # what that was at last
        self.unsettled = 0  # so often the steps of an entity have not come to an end
        self.policies: PolicySet | None = None
        self.names: frozenset[str] = frozenset()  # that the policies have for instances
        self.hosts: frozenset[str] = frozenset()  # that the policies name
        self.budgets = self.cloning = True  # the policies have budgets; have parents of clones made
        self.supplies = True  # and have pilots sent
        self.rooms: Rooms | None = None
        self.free_names: Names | None = None
        self.needs: QueueNeeds | None = None  # what the waiting jobs want
        self.above_budget: frozenset[str] = frozenset()  # names of those that have to leave
        self.promised: frozenset[str] = frozenset()  # names of those whose room is for stopped work next
        self.latest: Plan | None = None
        self.stale: frozenset[str] = frozenset()  # hosts whose picture is old
        self.all_fresh_until_s = -inf  # no picture of a host becomes old before
        self.blind = False  # the latest plan could not rest on what Slurm shows

    def __len__(self) -> int:
        return len(self._marked)

    def __contains__(self, entity: Entity) -> bool:
        return entity in self._marked

    # --- marks -----------------------------------------------------------------------------------

    def mark(self, entity: Entity) -> None:
        """Have the next plan look at it."""
        if self._unasked:
            self._unasked.discard(entity)
        if entity not in self._marked:
            self._marked.add(entity)
            heappush(self._order, entity)

    def mark_scale(self) -> None:
        """How many instances, and how many pilots for them, there should be."""
        self.mark(SCALE)
        if self.promised or self._world.fleet.count_in(Phase.PARKED):
            self.mark(PROMISES)
        if self.supplies:
            self.mark(SUPPLY)

    def mark_nodes(self, names: Iterable[str]) -> None:
        """Mark the nodes of several names."""
        for name in names:
            self.mark(self._nodes.get(name) or self._of_node(name))

    def _of_node(self, name: str) -> Entity:
        """Return a node's entity: named so often that making it each time would count."""
        entity = self._nodes.get(name)
        if entity is None:
            entity = self._nodes[name] = Entity(Kind.NODE, name)
        return entity

    def begin_anew(self, policies: PolicySet, *, blind: bool, cloning: bool) -> None:
        """Have everything looked at by these policies, and keep nothing that was found before.

        `blind`: Slurm's picture is too old to rest on. `cloning`: parents of clones are made.
        """
        self.policies, self.blind, self.cloning = policies, blind, cloning
        self.names, self.hosts = frozenset(policies.instances.names), frozenset(policies.hosts)
        self.budgets, self.supplies = bool(policies.budgets.windows), policies.supply.on
        self.rooms = self.free_names = self.needs = None
        self.everything()

    def everything(self) -> None:
        """Have the next plan look at everything there is, and at all of which something was said."""
        world = self._world
        self._marked.update(
            self._results,
            (Entity(Kind.CLAIM, job_id) for job_id in world.claims),
            (Entity(Kind.NODE, name) for name in world.managed),
            (Entity(Kind.NODE, name) for _, name in world.instances),
            (Entity(Kind.NODE, name) for name in self.names.intersection(world.nodes)),
            (Entity(Kind.PARENTS, host.name) for host in world.hosts.values() if host.parents is not None),
            (Entity(Kind.MACHINES, job_id) for job_id in world.machines),
            (BUDGET, PROMISES, NEW_MACHINES, FLEETS, SCALE, SUPPLY, LIVENESS),
        )
        self._order = list(self._marked)
        heapify(self._order)
        if self.rooms is not None:
            self.rooms.forget()
        if self.free_names is not None:
            self.free_names.forget()

    def full_pass(self) -> None:
        """Have everything looked at, to find what the rules forgot to mark."""
        asked = set(self._marked)
        self.everything()
        self._unasked = self._marked - asked

    def _found(self, entity: Entity, *, different: bool) -> None:
        """Count it as forgotten if only a full pass had it looked at, and that made a difference."""
        if different and entity in self._unasked:
            self.forgotten += 1
            self.forgot = f"{entity.kind.name.lower()} {entity.name}".strip()
        self._unasked.discard(entity)

    def put_back(self, looked_at: Iterable[Entity]) -> None:
        """Have all of this looked at once more: the world is as it was before the plan tried its steps."""
        if self.rooms is not None:
            self.rooms.hosts.put_back()
        if self.free_names is not None:
            self.free_names.names.put_back()
        for entity in looked_at:
            self.mark(entity)

    def carried_out(self) -> None:
        """Drop all marks: the world is as the latest plan left it, which has looked at all of this."""
        self._marked.clear()
        self._order.clear()

    def drain(self, look: Callable[[Entity, bool], tuple[Result, bool]], most: int) -> Collection[Entity]:
        """Have `look` look at what is marked until nothing is; whoever acts is looked at once more.

        `look` gets False with one that has acted `most` times, and returns what came of it and
        whether it acted. Returns all that were looked at.
        """
        done: dict[Entity, int] = {}
        rooms = self.rooms
        while True:
            # Who waits for room is marked before its turn comes.
            if rooms is not None and rooms.may_have_news and self._is_turn_of(Topic.ROOM):
                self._look_at_rooms(rooms)
            entity = self._pop()
            if entity is None:
                return done
            settled = done.setdefault(entity, 0) < most
            self.unsettled += not settled
            result, acted = look(entity, settled)
            done[entity] += acted
            different = self._settle(entity, result)
            self._found(entity, different=different or acted)
            if acted:
                self.mark(entity)

    def _look_at_rooms(self, rooms: Rooms) -> None:
        if rooms.news(self._world):
            self.happened(Topic.ROOM)

    def _pop(self) -> Entity | None:
        """Return what is to be looked at next; None: nothing."""
        if (entity := self._head()) is not None:
            heappop(self._order)
            self._marked.discard(entity)
        return entity

    def _head(self) -> Entity | None:
        while self._order and self._order[0] not in self._marked:
            heappop(self._order)
        return self._order[0] if self._order else None

    def _is_turn_of(self, topic: Topic) -> bool:
        """Return True if the next look may be one for which the topic should have happened before."""
        waiting, head = self._awaiting[topic], self._head()
        if not waiting or head is None:
            return bool(waiting)
        return any(entity.kind <= head.kind for entity in waiting)

    def begin(self, now_s: float) -> None:
        """Mark whatever wanted to be looked at by now. What is changed from here on is tentative."""
        if self.rooms is not None:
            self.rooms.hosts.begin()
            self.rooms.find_due(now_s)
        if self.free_names is not None:
            self.free_names.names.begin()
        self.happened(Topic.TIME)
        while self._wakes and self._wakes[0][0] <= now_s:
            at_s, entity = heappop(self._wakes)
            if self._wakes_at(entity) == at_s:
                self.mark(entity)

    def _wakes_at(self, entity: Entity) -> float:
        found = self._results.get(entity)
        return inf if found is None else found.wake_s

    def next_wake_s(self) -> float:
        """Return when the first of all wants to be looked at again."""
        while self._wakes and self._wakes_at(self._wakes[0][1]) != self._wakes[0][0]:
            heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else inf

    # --- results ---------------------------------------------------------------------------------

    def _settle(self, entity: Entity, result: Result) -> bool:
        """Keep what came of a look at it; return True if that is something else than before."""
        old = self._results.pop(entity, None)
        if old is not None:
            for topic in old.topics - result.topics:
                self._awaiting[topic].discard(entity)
        for topic in result.topics:
            self._awaiting[topic].add(entity)
        if result.refusals or result.watch or result.topics or result.wake_s < inf:
            self._results[entity] = result
            if result.wake_s < inf:
                heappush(self._wakes, (result.wake_s, entity))
        return (old or _NOTHING) != result

    def results(self) -> list[Result]:
        """Of everything, in the order in which a plan looks at it."""
        return [self._results[entity] for entity in sorted(self._results)]

    # --- rules: whom a change concerns -----------------------------------------------------------

    def is_awaited(self, topic: Topic) -> bool:
        """Return True if a step waits for that."""
        return bool(self._awaiting[topic])

    def awaiting_readings(self) -> Iterator[str]:
        """Yield names of nodes of ours, and of those left over, that wait for readings."""
        for entity in self._awaiting[Topic.READING]:
            if entity.kind is Kind.NODE:
                yield entity.name

    def happened(self, topic: Topic) -> None:
        """Mark whatever waits for that: it has happened."""
        for entity in self._awaiting[topic]:
            self.mark(entity)

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
            self.mark_scale()
            self._mark_fleets()
        if came_or_went:
            self._mark_if_silent()
            self.happened(Topic.SILENCE)
            self._name_moved(name)

    def mark_name(self, name: str) -> None:
        """Mark the node or instances of this name."""
        if name in self._world.managed or name in self.names or self._world.fleet.places_of(name):
            self._mark_node(name)
        self._mark_if_silent(name)

    def _mark_node(self, name: str) -> None:
        self.mark(self._of_node(name))
        if self._world.claims:
            for job_id in self._world.claim_index.at(name):
                self.mark(Entity(Kind.CLAIM, job_id))

    def _mark_if_silent(self, name: str = "") -> None:
        """Nodes are set down by those that are silent: by this one, or by all of them."""
        silent = self._world.silent
        if silent and (not name or name in silent):
            self.mark(LIVENESS)

    def _name_moved(self, name: str) -> None:
        if self.free_names is not None:
            self.free_names.names.touch(name)

    def _mark_budget(self) -> None:
        if self.budgets:
            self.mark(BUDGET)

    def _mark_fleets(self) -> None:
        if self._world.fleets:
            self.mark(FLEETS)

    def host_moved(self, host: str) -> None:
        """Something about a host, or on it, is different: that concerns all who use its room."""
        world = self._world
        self.mark_nodes(world.fleet.all_names_on(host))
        if world.machines:
            for job_id in {world.managed[name].job for name in world.fleet.names_on(host)}:
                self.mark_nodes(self._members(job_id))  # they stand still and go on together
        self._mark_claims(host, waiting=True)
        known = world.hosts.get(host)
        if known is not None and known.parents is not None and (self.cloning or world.fleets):
            self.mark(Entity(Kind.PARENTS, host))
        if host in world.burst:
            self.mark_scale()
        if self.rooms is not None:
            self.rooms.hosts.touch(host)

    def _mark_claims(self, host: str, *, waiting: bool = False) -> None:
        """Claims on the host; or those that wait for its room: no others ask what of ours is there."""
        if not self._world.claims:
            return
        for job_id in self._world.claim_index.on(host):
            if not waiting or self._world.claims[job_id].waiting:
                self.mark(Entity(Kind.CLAIM, job_id))

    def host_seen(self, host: str) -> None:
        """Mark whom a host concerns that looks different: if it is new, its instances count from now on."""
        self.host_moved(host)
        self._mark_claims(host)
        self.mark_scale()
        self._mark_fleets()
        self._mark_if_silent()
        self.happened(Topic.REMOVALS)
        for job_id in self._world.machines:
            self._mark_machines(job_id)

    def instance_moved(self, host: str, name: str) -> None:
        """Mark whom an instance concerns that its hypervisor shows otherwise than before."""
        self._mark_node(name)
        self.host_moved(host)
        node = self._world.managed.get(name)
        if node is not None:
            self.companions_moved(node)
        if node is None or node.generation == 0 or not self._world.fleet.places_of(name):
            self.mark_scale()
            self._mark_fleets()

    def job_moved(self, before: Job | None, after: Job | None) -> None:
        """Mark whom a job concerns that looks different: its nodes, where it is held, and the queue."""
        world = self._world
        job = after or before
        assert job is not None
        nodes = {name for one in (before, after) if one is not None for name in one.nodes}
        for name in nodes:
            self._jobs_moved_on(name)
        self.mark_nodes(world.fleet.holders(job.id))
        for job_id in {job.id, str(job.raw_id)}:
            if job_id in world.claims:
                self.mark(Entity(Kind.CLAIM, job_id))
        if job.id in world.machines:
            self._mark_machines(job.id)
        waited = any(one is not None and one.state is JobState.PENDING for one in (before, after))
        if waited or job.id in world.job_index.active_asking:
            self.mark(NEW_MACHINES)
        if ours := any(name in world.managed for name in nodes):
            self._mark_budget()
        if waited or ours or slot_of_name(job.name) is not None:  # what only has a pilot's name is in its way
            self.mark_scale()

    def _jobs_moved_on(self, name: str) -> None:
        """Other jobs than before are on a node, or they look different."""
        node, host = self._world.managed.get(name), self._world.host_of_node(name)
        if node is not None or name in self.names or self._world.fleet.places_of(name):
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
        self.mark(Entity(Kind.CLAIM, job_id))
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
        self.companions_moved(node)
        if node.job in self._world.machines:
            self._mark_machines(node.job)
        if before is not None and (before.held != node.held or before.order != node.order):
            self.companions_moved(before)
        self.mark_scale()
        self._mark_fleets()
        self._mark_if_silent(node.name)
        old, new = (None if one is None else one.phase for one in (before, after))
        if old is not new:
            self._name_moved(node.name)
            self._mark_budget()
            self.happened(Topic.BOOTS)
        if (old in ON_CPU) is not (new in ON_CPU):
            self.happened(Topic.ON_CPU)
        if old in (Phase.REMOVING, Phase.DRAINING) and old is not new:
            self.happened(Topic.REMOVALS)
        if before is not None and checkpointed(before):
            self.happened(Topic.CHECKPOINTS)

    def companions_moved(self, node: ManagedNode) -> None:
        """Nodes that share a job with it, or the order of a checkpoint, look at it."""
        world = self._world
        if node.order is not None:
            self.mark_nodes(name for name in node.order.members if name in world.managed)
        self._mark_fellows(node.name)
        for held in node.held:
            self.mark_nodes(world.fleet.holders(held.id))
        if node.job:
            self._mark_machines(node.job)
            self.happened(Topic.BOOTS)  # it may have done its part

    def _mark_fellows(self, name: str) -> None:
        """Mark the nodes of ours that share a job with the node of this name, whoever's that is."""
        for job in self._world.jobs_on(name):
            if len(job.nodes) > 1:
                self.mark_nodes(fellow for fellow in job.nodes if fellow in self._world.managed)

    def call_moved(self, kind: str, name: str, host: str) -> None:
        """Mark whom a call about a node or a host concerns: it was begun, or is over."""
        world = self._world
        self.mark_name(name)
        if name in world.machines:
            self._mark_machines(name)
            self.mark_nodes(self._members(name))
            self._booting_counts_anew(self._members(name))
        if name in world.hosts:
            self.host_moved(name)
            self.happened(Topic.BOOTS)
        if host:
            self.host_moved(host)
        node = world.managed.get(name)
        self._mark_fellows(name)  # also where no record has it: it may be closed for them
        if node is not None:
            if node.host != host:
                self.host_moved(node.host)
            self.companions_moved(node)
        self._mark_by_kind(kind)
        self._mark_fleets()

    def _mark_by_kind(self, kind: str) -> None:
        if kind == "SuspendInstance":
            self.happened(Topic.DISK)
        if kind in _PILOTS:
            self.mark(SUPPLY)

    def machines_moved(self, job_id: str) -> None:
        """Mark whom a job's own machines concern: those after them in the queue may have their turn."""
        self._mark_machines(job_id)
        for other in self._world.machines.values():
            if other.waits or other.job.partition("+")[0] == job_id.partition("+")[0]:
                self._mark_machines(other.job)
        self.mark(NEW_MACHINES)
        self.mark_nodes(self._members(job_id))
        self._mark_fleets()
        self.mark_scale()

    def _booting_counts_anew(self, names: Iterable[str]) -> None:
        """Mark who may boot, or not, as a job's own machines wait for their fellows, or no longer do."""
        if self.rooms is not None:
            for name in names:
                self.rooms.hosts.touch(self._world.managed[name].host)
        self.happened(Topic.BOOTS)

    def _mark_machines(self, job_id: str) -> None:
        self.mark(Entity(Kind.MACHINES, job_id))

    def _members(self, job_id: str) -> list[str]:
        own = self._world.machines.get(job_id)
        fleet = None if own is None else self._world.fleets.get(own.fleet)
        return [] if fleet is None else [name for name in fleet.members if name in self._world.managed]

    def fleet_moved(self, members: Iterable[str], job_id: str = "") -> None:
        """Mark whom an order of a fleet concerns that is new, further or over; a job's own has its id."""
        if job_id in self._world.machines:
            self._mark_machines(job_id)
        self.mark(FLEETS)
        self.mark_scale()
        self.mark_nodes(name for name in members if name in self._world.managed)

    def outcome_doubted(self, name: str, hosts: Iterable[str]) -> None:
        """Mark who waits for room: where an instance is has become uncertain, or certain again."""
        self.mark_name(name)
        for host in hosts:
            self.host_moved(host)
        for claim in self._world.claims.values():
            if claim.waiting:
                self.mark(Entity(Kind.CLAIM, claim.job_id))
