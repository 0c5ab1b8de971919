"""The cycle of a replay: it keeps its latest steps for stories, and no journal for restarts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.plan import Action, AnswerClaim, Plan
from backfill.core.model.refusals import Code, Goal, Refusal
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from backfill.engine.narrate import sentence

_KEPT_STEPS = 20_000
_OF_INSTANCES = frozenset({ch.InstanceSeen, ch.InstanceStopped, ch.InstanceGone})


class ReplayCycle(Cycle):
    """A cycle that keeps its latest steps for stories instead of a journal for restarts."""

    def __init__(
        self,
        world: World,
        policies: PolicySet,
        start: Callable[[act.DriverAction], None],
        answer: Callable[[AnswerClaim], None],
    ) -> None:
        super().__init__(world, policies, MemoryJournal(), start, answer)
        self.steps: deque[tuple[float, Action]] = deque(maxlen=_KEPT_STEPS)
        self.refusals: dict[tuple[Goal, Code], int] = {}  # how often, by what and why
        self.examples: dict[tuple[Goal, Code], Refusal] = {}  # the first of each
        self.on_step: Callable[[float, Action], None] = lambda at_s, step: None
        self.on_change: Callable[[World, ch.Change], None] = lambda world, change: None
        self._told: set[tuple[str, Goal, str]] = set()

    def record(self, kind: str, subject: str, body: dict[str, object]) -> None:
        """Nobody will read it."""

    def _take_effect(self, plan: Plan) -> None:
        """Nobody writes it down: it is kept for stories."""
        for step in plan.actions:
            self.steps.append((self.world.now_s, step))
            self.on_step(self.world.now_s, step)

    def _apply(self, change: ch.Change) -> None:
        self.world.apply(change)
        if type(change) in _OF_INSTANCES:
            self.on_change(self.world, change)

    def _catch_up(self) -> None:
        """Nobody will read it."""

    def _mark(self, plan: Plan) -> None:
        """Nobody will read it."""

    def _note_refusals(self, refusals: Iterable[Refusal]) -> None:
        """Count a refusal when it begins, not in every cycle."""
        now = {r.key: r for r in refusals}
        for key, refusal in now.items():
            if key not in self._told:
                kind = (refusal.wanted, refusal.code)
                self.refusals[kind] = self.refusals.get(kind, 0) + 1
                self.examples.setdefault(kind, refusal)
        self._told = set(now)

    def story(self, subject: str, until_s: float) -> list[str]:
        """Return the latest steps about a node or job, one sentence each with its time."""
        told = ((at_s, step, sentence(step)) for at_s, step in self.steps if at_s <= until_s)
        return [
            f"{at_s:.3f} {text}"
            for at_s, step, text in told
            if step.subject == subject or subject in text.split()
        ]
