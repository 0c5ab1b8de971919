"""One cycle: changes into the world, a plan out of it, intents into the journal, then effects."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from backfill.core.heeding import Heed
from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode
from backfill.core.model.plan import (
    Action,
    AnswerClaim,
    Before,
    EndClaim,
    ForgetNode,
    Plan,
    SetFleet,
    SetMachines,
    SetNode,
)
from backfill.core.model.records import REMEMBERED, encode_briefly
from backfill.core.model.refusals import Goal, Refusal, defect
from backfill.core.model.sentences import line
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import enact
from backfill.core.world import World
from backfill.engine.metering import Meter
from backfill.engine.narrate import sentence
from backfill.ports.errors import DriverError
from backfill.ports.storage import Journal, Record

_LOG = logging.getLogger("backfill.cycle")

# So often a journal that could not be written is tried again, and the log says so; and so many
# records are kept for it meanwhile.
_RETRY_S = 1.0
_SAY_EVERY_S = 60.0
_MOST_UNWRITTEN = 100_000

# Steps that call no driver.
_NO_CALLS = (SetNode, ForgetNode, SetFleet, SetMachines, EndClaim, AnswerClaim)

# Changes that say nothing new; they are not worth a line in the journal.
_SILENT = (ch.Tick, ch.SourceSeen, ch.NodesRead)


class Cycle:
    """Owns the world. Not thread-safe: one thread feeds it, live or in simulated time."""

    def __init__(
        self,
        world: World,
        policies: PolicySet,
        journal: Journal,
        start: Callable[[act.DriverAction], None],
        answer: Callable[[AnswerClaim], None],
        *,
        full_pass_s: float = 0.0,
        meter: Meter | None = None,
        spare: bool = False,
    ) -> None:
        """`full_pass_s`: how often a plan looks at everything; 0: only at what is marked.

        `meter`: who counts what happens. `spare`: what cannot be decided upon is set aside, instead of
        an error for everything.
        """
        self.world = world
        self._meter = meter
        self.policies = policies
        self.last = Plan()
        self._full_pass_s = full_pass_s
        self._passed_s = world.now_s
        self._forgotten = 0
        self._journal = journal
        self._start = start
        self._answer = answer
        self._records: list[Record] = []
        self.unwritten = ""  # why the journal cannot be written now
        self._failed_s = self._said_s = 0.0
        self._refused: dict[tuple[str, Goal, str], Refusal] = {}
        self._spare = spare
        self._told_s: dict[tuple[str, str], float] = {}  # when the log last told of a failed step
        self._heed = Heed(world)
        self._quiet: dict[object, ch.Change] = {}  # the latest of each kind

    def tick(self, now_s: float) -> None:
        """Let it be `now_s` (epoch seconds)."""
        self._apply(ch.Tick(now_s))

    def take(self, changes: Iterable[ch.Change]) -> None:
        """Take changes into the world. Each picture must be compared with the world of its turn."""
        for change in changes:
            self._apply(change)

    def decide(self) -> Plan:
        """Plan, and begin what was planned."""
        if self._carry_out(self._plan()):
            self._flush()  # what was only observed, or ordered by a person, must survive too
        else:
            self._carry_out(self._plan())  # what may be done although nothing can be written
        return self.last

    def _plan(self) -> Plan:
        """Plan, and write down on what that rests. The world is then as it will be with all of it begun."""
        now_s, queue = self.world.now_s, self.world.queue
        if self._full_pass_s and now_s >= self._passed_s + self._full_pass_s:
            self._passed_s = now_s
            queue.full_pass()
        self._catch_up()
        self.last = enact(self.world, self.policies, spare=self._spare)
        if queue.forgotten > self._forgotten:
            self._forgotten = queue.forgotten
            _LOG.error(
                "no change had marked %s, and yet it was to be looked at; please report this", queue.forgot
            )
        self._tell_failed()
        self._mark(self.last)
        self._note_refusals(self.last.refusals)
        return self.last

    def _tell_failed(self) -> None:
        """Say in the log what was set aside, with what is needed to mend it; the same only now and then."""
        failed, now_s = self.world.queue.failed, self.world.now_s
        lately = {key: at_s for key, at_s in self._told_s.items() if now_s - at_s <= _SAY_EVERY_S}
        for name, error in failed.items():
            if (key := (name, defect(error))) not in lately:
                lately[key] = now_s
                _LOG.error(
                    "deciding about %s failed: it is left alone; please report this", name, exc_info=error
                )
        self._told_s = lately
        failed.clear()

    def _take_effect(self, plan: Plan) -> None:
        """Note what is decided, and what that has changed in the world."""
        for step, before in zip(plan.actions, plan.before, strict=True):
            self._tell(step, before)
            self._hear(step.effect(self.world.now_s), before if isinstance(before, ManagedNode) else None)

    def bar(self, by: str, problem: str) -> None:
        """From now on do no more than give hosts back, because of `by`; empty: all again."""
        if problem != self.world.barred.get(by, ""):
            self._apply(ch.Barred(by, self.world.now_s, problem))

    def record(self, kind: str, subject: str, body: dict[str, object]) -> None:
        """Write a line of the daemon's own into the journal."""
        self._records.append(Record(self.world.now_s, kind, subject, body))
        self._flush()

    # --- inside --------------------------------------------------------------------------------

    def _apply(self, change: ch.Change) -> None:
        """Change the world first: what it cannot take must not reach the journal."""
        world = self.world
        before = (world.sighted_since_s, list(world.doubts.values()))
        known = world.managed.get(change.node.name) if isinstance(change, ch.NodeManaged) else None
        world.apply(change)
        same = (world.sighted_since_s, list(world.doubts.values())) == before
        if isinstance(change, _SILENT) and same:
            self._keep_quiet(change)
        else:
            self._hear(change, known)

    def _hear(self, change: ch.Change, known: ManagedNode | None) -> None:
        """Count and write down a change that the world has taken. `known`: of a record, the one before it."""
        if self._meter is not None:
            self._meter.took(change, known)
        for told in self._heed.news(change, self.policies):
            self._tell_change(told, known)

    def _keep_quiet(self, change: ch.Tick | ch.SourceSeen | ch.NodesRead) -> None:
        """Nothing is new but that time has passed: the latest of a kind says it all."""
        if isinstance(change, ch.SourceSeen) and change.source != "slurm":
            self._heed.read(change)
            return
        kind = _kind(change)
        old = self._quiet.pop(kind, None)  # the order is that of the latest ones
        if isinstance(change, ch.SourceSeen) and isinstance(old, ch.SourceSeen):
            change = replace(change, from_s=old.from_s or old.seen_s)
        self._quiet[kind] = change

    def _tell_change(self, change: ch.Change, known: ManagedNode | None = None) -> None:
        self._speak()
        self._records.append(_record(self.world.now_s, "change", change, known))

    def _speak(self) -> None:
        """Replay needs the clock and the freshness that a decision saw."""
        for quiet in self._quiet.values():
            self._records.append(_record(self.world.now_s, "change", quiet))
        self._quiet.clear()

    def _catch_up(self) -> None:
        """Write down what the next plan sees and nobody has told yet."""
        for change in self._heed.catch_up(self.policies):
            self._tell_change(change)

    def _mark(self, plan: Plan) -> None:
        """Note a plan that had news to see or led to something: replay plans there as well."""
        if plan.actions or self._records:
            self._speak()
            for reading in self._heed.readings(self.policies, plan.records_before()):
                self._records.append(_record(self.world.now_s, "change", reading))
            body: dict[str, object] = {"steps": len(plan.actions), "whole": True}
            self._records.append(Record(self.world.now_s, "plan", "cluster", body))

    def _carry_out(self, plan: Plan) -> bool:
        """Journal, then do. False when the journal could not be written."""
        steps = plan.actions
        if not steps:
            return True
        answers = [s for s in steps if isinstance(s, AnswerClaim)]
        self._take_effect(plan)
        written = self._flush()
        for answered in answers:
            self._answer(answered)
        for step in steps:
            if isinstance(step, _NO_CALLS):
                continue
            if written or step.safe_unwritten:
                self._start(step)
            else:
                why = "it was not begun, because it could not be written down"
                now_s = self.world.now_s
                self._apply(ch.OperationDone(step.key, now_s, why, begun=False))
        return written

    def _tell(self, step: Action, before: Before) -> None:
        if self._meter is not None:
            self._meter.step(step, before)
        kind = "phase" if isinstance(step, SetNode | ForgetNode | SetFleet | SetMachines) else "intent"
        body = encode_briefly(step, before if isinstance(before, ManagedNode) else None)
        self._records.append(Record(self.world.now_s, kind, step.subject, body))
        _LOG.info("%s", sentence(step))

    def _note_refusals(self, refusals: Sequence[Refusal]) -> None:
        """Journal and log a refusal when it is new or says something new, not in every cycle."""
        now = {r.key: r for r in refusals}
        for key, refusal in now.items():
            if refusal.is_news_after(self._refused.get(key)):
                self._records.append(_record(self.world.now_s, "refusal", refusal))
                if self._meter is not None:
                    self._meter.refused(refusal)
                _LOG.info("%s", line(refusal))
        self._refused = now

    def _flush(self) -> bool:
        """Store what was told; false while that does not work: it is tried again, whole."""
        now_s = self.world.now_s
        if not self._records:
            return True
        if self.unwritten and self._failed_s <= now_s < self._failed_s + _RETRY_S:
            return False
        try:
            self._journal.append(self._records)
        except DriverError as error:
            self._could_not_write(str(error))
            return False
        self._records = []
        if self.unwritten:
            _LOG.warning("the journal can be written again")
            self.unwritten = ""
            self._apply(ch.Barred("journal", now_s, ""))
            return self._flush()
        return True

    def _could_not_write(self, problem: str) -> None:
        """Go on with what may be done unwritten, and keep the rest for later, within bounds."""
        now_s = self.world.now_s
        if not self.unwritten or now_s - self._said_s > _SAY_EVERY_S:
            _LOG.error(
                "the journal cannot be written: %s; until it can, instances are paused and "
                "throttled where their hosts are wanted, and nothing else is done",
                problem,
            )
            self._said_s = now_s
        first, self.unwritten, self._failed_s = not self.unwritten, problem, now_s
        if first:
            self._apply(ch.Barred("journal", now_s, problem))
        if len(self._records) > _MOST_UNWRITTEN:
            kept = [r for r in self._records if r.kind != "change" or r.body["t"] in REMEMBERED]
            gap: dict[str, object] = {"event": "gap", "why": "too much to be kept: " + problem}
            self._records = [*kept[-_MOST_UNWRITTEN:], Record(now_s, "daemon", "cluster", gap)]


def _kind(change: ch.Tick | ch.SourceSeen | ch.NodesRead) -> object:
    """Of two silent changes of one kind the later one says it all."""
    match change:
        case ch.SourceSeen():
            return change.source
        case ch.NodesRead():
            return change.names
        case ch.Tick():
            return None


def _record(at_s: float, kind: str, value: ch.Change | Refusal, known: ManagedNode | None = None) -> Record:
    return Record(at_s, kind, _subject(value), encode_briefly(value, known))


def _subject(value: ch.Change | Refusal) -> str:
    """Whom a journal line is about: what `explain` looks for."""
    if isinstance(value, ch.OperationStarted | ch.OperationDone):
        return value.key.split(":")[1]
    kind: Any = type(value)
    for field, inner in _subjects(kind):
        found = getattr(value, field, None)
        if found is not None:
            return str(getattr(found, inner) if inner else found)
    return "cluster"


@cache
def _subjects(kind: Any) -> tuple[tuple[str, str], ...]:
    """Where values of this type may carry it."""
    there = {field.name for field in fields(kind)}
    return tuple(one for one in _SUBJECTS if one[0] in there)


# Where changes carry their subject: the first field that is there, and its own field if any.
_SUBJECTS = (
    ("node", "name"),
    ("fleet", "id"),
    ("machines", "job"),
    ("job", "id"),
    ("instance", "name"),
    ("name", ""),
    ("id", ""),
    ("job_id", ""),
    ("subject", ""),
    ("host", "name"),
    ("source", ""),
)
