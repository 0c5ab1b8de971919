"""The daemon: one thread owns the world, fed by an inbox; clocks, sockets, workers around it."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from apscheduler.schedulers.background import BackgroundScheduler

from backfill.core import changes as ch
from backfill.core.actions import DriverAction
from backfill.core.plan import AnswerClaim, key_of, lands_on
from backfill.core.policy import PolicySet
from backfill.core.records import REMEMBERED, remembered
from backfill.core.world import World
from backfill.engine.addresses import AddressBook
from backfill.engine.clock import TOO_FAR_S
from backfill.engine.cycle import Cycle
from backfill.engine.hooking import HookDesk
from backfill.engine.looking import Outside
from backfill.engine.messages import (
    AddressNews,
    ClusterPicture,
    HookCall,
    HookGone,
    HostPicture,
    Message,
    NodesPicture,
    PolicyRead,
    Question,
    ReadFailed,
    Reread,
    Result,
    Stop,
)
from backfill.engine.notify import notify
from backfill.engine.observe import cluster_changes, host_changes, node_changes
from backfill.engine.policyfile import PolicyFile
from backfill.engine.summary import summary
from backfill.engine.waiting import WaitingRoom
from backfill.engine.watch import Watch, only_start, stirs
from backfill.engine.workers import Workers
from backfill.ports import Journal

_LOG = logging.getLogger("backfill.daemon")
_LONGEST_WAIT_S = 1.0
_SUMMARY_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How often the outside is read. Seconds."""

    poll_s: float = 2.0
    host_poll_s: float = 5.0
    watch_s: float = 0.03
    workers: int = 16
    policy_s: float = 0.0  # how often the policy file is looked at; 0: never by itself


class Daemon:
    """observe → changes → plan → execute → journal, until stopped."""

    def __init__(
        self,
        policies: PolicySet,
        outside: Outside,
        journal: Journal,
        pace: Pace,
        tidy: Callable[[], object] = lambda: None,
        policyfile: PolicyFile | None = None,
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.world = World()
        self.journal = journal
        self.cycle = Cycle(self.world, policies, journal, self._begin, self._answer)
        self.outside = outside
        self._pace = pace
        self.policyfile = policyfile if policyfile is not None else PolicyFile()
        self._tidy = tidy  # what is to be done once an hour, such as pruning the journal
        self._workers = Workers(outside, self.inbox, pace.workers)
        self._waiting = WaitingRoom(self.cycle, self._workers.tell)
        self._addresses = AddressBook(self.cycle, self._workers.look_up)
        self._watch = Watch(pace.watch_s)
        self._sources = ("slurm", *outside.providers)
        self._desk = HookDesk(
            self.world, self._watch, self._sources, self.poke,
            lambda: bool(self.cycle.policies.devices.entries),
        )  # fmt: skip
        self._said = ""
        self._said_s = 0.0
        self._scheduler = BackgroundScheduler(timezone="UTC")

    # --- life ----------------------------------------------------------------------------------

    def recall(self) -> int:
        """Take from the journal what only we know; returns the number of managed nodes."""
        bodies = (r.body for r in self.journal.read(types=REMEMBERED) if r.kind == "change")
        for change in remembered(bodies, self.world.now_s):
            self.world.apply(change)
        return len(self.world.managed)

    def run(self) -> str:
        """Work until a Stop message comes; returns its reason."""
        # A waiting hook must not wait for a long slice of another thread.
        sys.setswitchinterval(0.001)
        self.cycle.tick(self.outside.clock.now())
        known = self.recall()
        self.cycle.record("daemon", "cluster", {"event": "start", "managed": known})
        _LOG.info("started; %d managed nodes are known from the journal", known)
        self._start_clocks()
        notify("READY=1")
        try:
            return self._loop()
        finally:
            self._scheduler.shutdown(wait=False)
            self._workers.close()
            notify("STOPPING=1")

    def _start_clocks(self) -> None:
        for source in self._sources:
            seconds = self._pace.poll_s if source == "slurm" else self._pace.host_poll_s
            self._scheduler.add_job(
                self._workers.observe,
                "interval",
                seconds=seconds,
                args=[source],
                coalesce=True,
                max_instances=1,
                misfire_grace_time=None,
            )
            self._workers.observe(source)
        self._scheduler.add_job(self._tidy, "interval", hours=1, coalesce=True)
        if self._pace.policy_s > 0:
            self._scheduler.add_job(
                self.reread, "interval", seconds=self._pace.policy_s, coalesce=True, max_instances=1
            )
        self._scheduler.start()

    def poke(self, *sources: str) -> None:
        """Read these sources (all, if none is named) now; callable from any thread."""
        for source in sources or self._sources:
            self._workers.observe(source)

    def reread(self, *, force: bool = False) -> None:
        """Read the policy file again if it has changed or if `force`; in any thread but ours."""
        reading = self.policyfile.read(self.cycle.policies, force=force)
        if reading is not None:
            self.inbox.put(PolicyRead(reading))

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> str:
        while True:
            messages = self._next()
            stop = next((m for m in messages if isinstance(m, Stop)), None)
            if stop is not None:
                self.cycle.record("daemon", "cluster", {"event": "stop", "why": stop.why})
                return stop.why
            now_s = self._time()
            questions = [m for m in messages if isinstance(m, Question)]
            self.cycle.tick(now_s)
            for message in messages:
                self.cycle.take(self._changes(message, now_s))
            patience_s = self.cycle.policies.answer_within_s
            while (early := self._desk.take_early(now_s, patience_s)) is not None:
                self.cycle.take(early)
            plan = self.cycle.decide()
            watched = plan.watch | self._watch.leaving(self.world)
            self._watch.want(watched, now_s, patient=only_start(self.world, watched))
            for question in questions:
                question.reply.put(question.ask())
            self._look(now_s)
            self._waiting.look(now_s)
            self._addresses.look(now_s)
            self._say(now_s)
            notify("WATCHDOG=1")

    def _time(self) -> float:
        """What time it is. RuntimeError when the machine's clock went back too far to bridge."""
        clock = self.outside.clock
        if clock.ahead() > TOO_FAR_S:
            why = (
                f"the machine's clock went back by more than {TOO_FAR_S:.0f} s: start the daemon "
                "again, which then goes by the new time"
            )
            self.cycle.record("daemon", "cluster", {"event": "stop", "why": why})
            raise RuntimeError(why)
        return clock.now()

    def _next(self) -> list[Message]:
        """Wait for something to do; take everything that is there."""
        now_s = self.outside.clock.now()
        wait_s = min(_LONGEST_WAIT_S, self._watch.due_in_s(now_s))
        wait_s = min(wait_s, self._desk.due_in_s(now_s, self.cycle.policies.answer_within_s))
        wake_s = self.cycle.last.wake_at_s
        if wake_s is not None:
            wait_s = min(wait_s, max(0.001, wake_s - now_s))
        try:
            messages = [self.inbox.get(timeout=wait_s)]
        except Empty:
            return []
        while True:
            try:
                messages.append(self.inbox.get_nowait())
            except Empty:
                return messages

    def _changes(self, message: Message, now_s: float) -> Iterable[ch.Change]:
        """What a message means for the world."""
        match message:
            case ClusterPicture() | NodesPicture() | HostPicture() | ReadFailed():
                return self._picture(message, now_s)
            case Result():
                return self._result(message, now_s)
            case HookCall():
                return self._desk.take(message, now_s)
            case HookGone() | PolicyRead() | AddressNews() | Reread():
                self._news(message)
                return []
            case Question() | Stop():
                return []

    def _news(self, message: HookGone | PolicyRead | AddressNews | Reread) -> None:
        """What is no news of the world."""
        match message:
            case HookGone():
                self._desk.forget(message.call)
            case PolicyRead():
                self.policyfile.take(message.reading, self.cycle)
            case AddressNews():
                self._addresses.heard(message.found)
            case Reread():
                self._scheduler.add_job(self.reread, kwargs={"force": True})  # now, beside us

    def _picture(
        self, message: ClusterPicture | NodesPicture | HostPicture | ReadFailed, now_s: float
    ) -> list[ch.Change]:
        match message:
            case ClusterPicture():
                return cluster_changes(self.world, message.seen)
            case NodesPicture():
                self._watch.answered(now_s)
                if message.seen is None:
                    return [ch.SourceFailed("slurm", now_s, message.problem)]
                return node_changes(self.world, message.names, message.seen)
            case HostPicture():
                return host_changes(self.world, message.seen)
            case ReadFailed():
                return [ch.SourceFailed(message.source, now_s, message.problem)]

    def _result(self, result: Result, now_s: float) -> list[ch.Change]:
        key = key_of(result.action)
        if result.problem:
            _LOG.warning("%s failed: %s", key, result.problem)
            self._look_after(result.action)
        elapsed_s = round(result.elapsed_s, 6)
        body: dict[str, object] = {"key": key, "elapsed_s": elapsed_s, "problem": result.problem}
        self.cycle.record("outcome", result.action.name, body)
        if stirs(result.action):
            self._watch.stir(now_s)
        done = ch.OperationDone(key, now_s, result.problem, result.retry)
        return [*result.changes, done]

    def _look_after(self, action: DriverAction) -> None:
        """A call failed that was to bring an instance somewhere: did it, all the same?"""
        doubt = {lands_on(action), getattr(action, "host", "")} if lands_on(action) else set()
        if hosts := doubt & set(self._sources):
            self.poke(*hosts)

    def _say(self, now_s: float) -> None:
        """One sentence per cycle; the same sentence again only once a minute."""
        said = summary(self.world, self.cycle.last)
        if said != self._said or now_s - self._said_s > _SUMMARY_EVERY_S:
            _LOG.info("%s", said)
            notify(f"STATUS={said}")
            self._said, self._said_s = said, now_s

    # --- looking -------------------------------------------------------------------------------

    def _look(self, now_s: float) -> None:
        names = self._watch.due(now_s)
        if names and self._workers.observe_nodes(names):
            self._watch.asked(now_s)

    def _answer(self, answer: AnswerClaim) -> None:
        self._desk.answer(answer)

    def _begin(self, action: object) -> None:
        self._workers.start(action)  # type: ignore[arg-type]  # the cycle passes DriverActions only
