"""What earlier plans found out and what still holds, because nothing that it rests on has changed.

A plan is a function of the world and the policies alone, and most of the world does not change from
one plan to the next. So a step that led to nothing is not taken again, and a value is not worked
out again, until a change touches something that it looked at (`Lens` notes that) or a time comes
with which it was compared (`Now` notes that). Everything here could be thrown away at any moment:
the next plan would be the same, only slower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from backfill.core.lens import Lens
    from backfill.core.plan import Plan
    from backfill.core.policy import PolicySet
    from backfill.core.refusals import Goal, Refusal
    from backfill.core.world import World

Refusals = dict[tuple[str, "Goal", str], "Refusal"]


@dataclass(slots=True, eq=False)
class Notes:
    """What one step or value rests on: `until_s` is when time alone may make a difference."""

    reads: set[str] = field(default_factory=set)
    until_s: float = inf
    fleeting: bool = False  # it looked at something of which no change tells


@dataclass(slots=True, eq=False)
class Finding:
    """What came of a step (refusals, when to plan again) or of working out a value."""

    until_s: float
    wake_at_s: float = inf
    refusals: Refusals = field(default_factory=dict)
    watch: frozenset[str] = frozenset()
    value: object = None
    work_out: Callable[[World], object] | None = None


@dataclass(slots=True)
class Trace:
    """What one step led to."""

    acted: bool = False
    wake_at_s: float = inf
    refusals: Refusals = field(default_factory=dict)
    watch: set[str] = field(default_factory=set)


class Findings:
    """Kept by the world, which tells by `touch` what changes. Subjects are steps and values.

    `nodes` and `claims` are the names of those whose steps have to be taken. Call `begin` before
    a plan uses anything else.
    """

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        self.claims: set[str] = set()
        self.suspects: set[str] = set()  # names whose instances may be orphans
        self.said: Refusals = {}  # by the steps that need not be taken
        self.watching: dict[str, frozenset[str]] = {}  # what such a step awaits, by its subject
        self._found: dict[str, Finding] = {}
        self._readers: dict[str, set[str]] = {}  # what was looked at -> whose findings rest on it
        self._due: list[tuple[float, int, str, Finding]] = []  # a heap; void ones included
        self._wakes: list[tuple[float, int, str, Finding]] = []  # likewise
        self._changed: set[str] = set()  # values to be worked out anew
        self._policies: PolicySet | None = None
        self._number = count()
        self.lens: Lens | None = None  # through which the world is looked at
        self.latest: Plan | None = None

    def __contains__(self, subject: str) -> bool:
        return subject in self._found

    def __len__(self) -> int:
        return len(self._found)

    # --- changes -------------------------------------------------------------------------------

    def touch(self, what: str) -> None:
        """Something has changed: whatever rests on it has to be found out again."""
        readers = self._readers.pop(what, None)
        if readers:
            for subject in readers:
                self._void(subject)

    def rouse_node(self, name: str) -> None:
        """A managed node is new or different."""
        self.nodes.add(name)
        self._void(f"node {name}")

    def rouse_claim(self, job_id: str) -> None:
        """A claim is new or different."""
        self.claims.add(job_id)
        self._void(f"claim {job_id}")

    def take_nodes(self) -> set[str]:
        """Names of the managed nodes whose steps have to be taken."""
        taken, self.nodes = self.nodes, set()
        return taken

    def take_claims(self) -> set[str]:
        """Ids of the claims whose steps have to be taken."""
        taken, self.claims = self.claims, set()
        return taken

    def stay_awake(self, subject: str) -> None:
        """A step was taken: unless it led to nothing, it has to be taken again."""
        if subject not in self._found:
            self._rouse(subject)

    def _rouse(self, subject: str) -> None:
        kind, _, name = subject.partition(" ")
        if kind == "node":
            self.nodes.add(name)
        elif kind == "claim":
            self.claims.add(name)

    def _void(self, subject: str) -> None:
        found = self._found.get(subject)
        if found is None:
            return
        if found.work_out is not None:
            self._changed.add(subject)
            return
        del self._found[subject]
        self.watching.pop(subject, None)
        for key in found.refusals:
            self.said.pop(key, None)
        self._rouse(subject)

    # --- plans ---------------------------------------------------------------------------------

    def calm(self, now_s: float, policies: PolicySet) -> bool:
        """Whether the latest plan, which led to nothing, would only be made once more."""
        if self.latest is None or self.latest.actions or policies is not self._policies:
            return False
        if self.nodes or self.claims or self.suspects or self._changed:
            return False
        due_s = self._due[0][0] if self._due else inf
        return "scale" in self._found and "liveness" in self._found and now_s < due_s

    def heeds(self, whether: Callable[[str], bool]) -> bool:
        """Whether anything that was found out may rest on something of which this is true."""
        return any(whether(what) for what in self._readers)

    def begin(self, world: World, policies: PolicySet, look: Callable[[], World]) -> None:
        """Find out what no longer holds. `look` gives the world through which values are seen."""
        if policies is not self._policies:
            self.forget(world)
            self._policies = policies
        due = self._due
        while due and due[0][0] <= world.now_s:
            _, _, subject, found = heappop(due)
            if self._found.get(subject) is found:
                self._void(subject)
        if self._changed:
            self._work_out(look())

    def doubt(self) -> None:
        """A plan was not finished: the next one forgets everything."""
        self._policies = None

    def forget(self, world: World) -> None:
        """Everything has to be found out anew."""
        self._found.clear()
        self._readers.clear()
        self._due.clear()
        self._wakes.clear()
        self._changed.clear()
        self.said.clear()
        self.watching.clear()
        self.nodes.update(world.managed)
        self.claims.update(world.claims)
        self.suspects.update(name for _, name in world.instances)

    def _work_out(self, world: World) -> None:
        """Work out anew what has readers; those of a value that stays the same need not know."""
        while self._changed:
            subject = next(iter(self._changed))
            old = self._found.get(subject)
            if old is not None and old.work_out is not None and self._readers.get(f"={subject}"):
                world.keep(subject, old.work_out)
            else:
                self.lose(subject)

    def wake_at_s(self) -> float:
        """When the first of the steps that need not be taken wants to be taken."""
        wakes = self._wakes
        while wakes and self._found.get(wakes[0][2]) is not wakes[0][3]:
            heappop(wakes)
        return wakes[0][0] if wakes else inf

    # --- keeping -------------------------------------------------------------------------------

    def value(self, subject: str) -> Finding | None:
        """The value as it was worked out, if it still holds."""
        return None if subject in self._changed else self._found.get(subject)

    def lose(self, subject: str) -> None:
        """A value cannot be kept any more, or nobody needs it."""
        self._changed.discard(subject)
        if self._found.pop(subject, None) is not None:
            self.touch(f"={subject}")

    def settle(self, subject: str, notes: Notes, found: Finding) -> None:
        """A step led to nothing, or a value was worked out."""
        old = self._found.get(subject)
        if old is not None and old.value != found.value:
            self.touch(f"={subject}")
        self._found[subject] = found
        self._changed.discard(subject)
        self.said.update(found.refusals)
        if found.watch:
            self.watching[subject] = found.watch
        readers = self._readers
        for what in notes.reads:
            known = readers.get(what)
            if known is None:
                readers[what] = {subject}
            else:
                known.add(subject)
        if found.until_s < inf:
            heappush(self._due, (found.until_s, next(self._number), subject, found))
        if found.wake_at_s < inf:
            heappush(self._wakes, (found.wake_at_s, next(self._number), subject, found))
