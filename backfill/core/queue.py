"""The work queue: what has to be looked at again, now or at a certain time, and why.

Whom a change concerns is said by the rules in `concerns.py`. Everything that the next plan does not
look at stays as it was found: its refusals, its awaited nodes, its wake. A full pass looks at
everything, whatever the rules say: it finds what a rule forgot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from backfill.core.model.plan import Plan
    from backfill.core.model.refusals import Goal, Refusal
    from backfill.core.picture import Picture
    from backfill.core.placement import Rooms
    from backfill.core.policies.demand import QueueNeeds
    from backfill.core.policy import PolicySet
    from backfill.core.reconcile.names import Names


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
    TURN = auto()  # others than before have machines of their own, or wait for their turn
    HABITS = auto()  # how much of their time limits the owners of jobs use is known better


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

    def touch(self, *names: str) -> None:
        """Something about them has changed."""
        self.touched.update(names)
        self._tried.update(names)

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


class ChangeMarks:
    """What is to be marked because of a change, until `WorkQueue.take` does it."""

    __slots__ = ("entities", "hosts", "names", "nodes", "topics")

    def __init__(self) -> None:
        self.entities: list[Entity] = []
        self.nodes: list[str] = []  # names
        self.topics: set[Topic] = set()  # that have happened
        self.hosts: list[str] = []  # on which new instances may find another room
        self.names: list[str] = []  # that may be free for new instances, or not any more


_ASIDE_S = 60.0


def again_s(now_s: float) -> float:
    """Return when what was set aside is looked at again at the latest: all of it at the same moment.

    Each such look may cost the plan in which it raises.
    """
    return (now_s // _ASIDE_S + 1.0) * _ASIDE_S


class WorkQueue:
    """Marks of what a plan has to look at; what is marked twice is looked at once."""

    def __init__(self, world: Picture) -> None:
        self._world = world
        self._marked: set[Entity] = set()
        self._nodes: dict[str, Entity] = {}  # by name
        self._order: list[Entity] = []  # a heap of all that are marked, and of some that are not
        self._results: dict[Entity, Result] = {}  # of what need not be looked at
        self._wakes: list[tuple[float, Entity]] = []  # a heap, with times that do not hold any more
        self._awaiting: dict[Topic, set[Entity]] = {topic: set() for topic in Topic}
        self._happened: set[Topic] = set()  # whoever waits for these is marked before anything is asked
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
        self.spares = False  # what cannot be decided upon is set aside: no error ends the plan
        self.failed: dict[str, Exception] = {}  # what was set aside since this was last emptied
        self.failures = 0  # so often it was not possible to decide about something

    def __len__(self) -> int:
        self._mark_awaiting()
        return len(self._marked)

    def __contains__(self, entity: Entity) -> bool:
        self._mark_awaiting()
        return entity in self._marked

    def set_aside(self, name: str, error: Exception) -> None:
        """Note that nothing can be decided about `node vn1`, `host bm1` or the like."""
        self.failed[name] = error
        self.failures += 1

    # --- marks -----------------------------------------------------------------------------------

    def mark(self, entity: Entity) -> None:
        """Have the next plan look at it."""
        if self._unasked:
            self._unasked.discard(entity)
        if entity not in self._marked:
            self._marked.add(entity)
            heappush(self._order, entity)

    def mark_nodes(self, names: Iterable[str]) -> None:
        """Mark the nodes of several names."""
        for name in names:
            self.mark(self._nodes.get(name) or self._of_node(name))

    def take(self, marks: ChangeMarks) -> None:
        """Mark everything that was found for a change, and empty the collection."""
        if marks.nodes:
            self.mark_nodes(marks.nodes)
            marks.nodes.clear()
        if marks.entities:
            for entity in marks.entities:
                self.mark(entity)
            marks.entities.clear()
        for topic in marks.topics:
            self.happened(topic)
        marks.topics.clear()
        if marks.hosts or marks.names:
            self._touch(marks)

    def _touch(self, marks: ChangeMarks) -> None:
        if self.rooms is not None:
            self.rooms.hosts.touch(*marks.hosts)
        if self.free_names is not None:
            self.free_names.names.touch(*marks.names)
        marks.hosts.clear()
        marks.names.clear()

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
        self._mark_awaiting()
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

    def drain(self, look: Callable[[Entity, bool], tuple[Result, bool]], most: int) -> Collection[Entity]:
        """Have `look` look at what is marked until nothing is; whoever acts is looked at once more.

        `look` gets False with one that has acted `most` times, and returns what came of it and
        whether it acted. Returns all that were looked at.
        """
        done: dict[Entity, int] = {}
        rooms = self.rooms
        while True:
            # Who waits for room is marked before its turn comes.
            if rooms is not None and (rooms.has_news or rooms.hosts.touched) and self._is_turn_of(Topic.ROOM):
                self._look_at_rooms(rooms)
            self._mark_awaiting()
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

    # --- topics ----------------------------------------------------------------------------------

    def is_awaited(self, topic: Topic) -> bool:
        """Return True if a step waits for that."""
        return bool(self._awaiting[topic])

    def awaiting_readings(self) -> Iterator[str]:
        """Yield names of nodes of ours, and of those left over, that wait for readings."""
        for entity in self._awaiting[Topic.READING]:
            if entity.kind is Kind.NODE:
                yield entity.name

    def happened(self, topic: Topic) -> None:
        """Have whatever waits for that marked: it has happened, perhaps many times at once."""
        if self._awaiting[topic]:
            self._happened.add(topic)

    def _mark_awaiting(self) -> None:
        while self._happened:
            for entity in self._awaiting[self._happened.pop()]:
                self.mark(entity)
