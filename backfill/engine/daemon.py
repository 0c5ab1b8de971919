"""The daemon: one thread owns the world, fed by an inbox; clocks, sockets, workers around it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from backfill.core.model.plan import AnswerClaim
from backfill.core.model.visible import visible
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.engine.addresses import AddressBook
from backfill.engine.asked import Asked
from backfill.engine.connection_limiter import Refused
from backfill.engine.cycle import Cycle
from backfill.engine.cycle_driver import CycleDriver
from backfill.engine.harvest_book import EVERY_S as HARVEST_EVERY_S
from backfill.engine.harvest_book import HarvestBook
from backfill.engine.hooking import HookDesk
from backfill.engine.looking import Outside
from backfill.engine.loss_book import LossBook
from backfill.engine.messages import (
    AddressNews,
    CallResult,
    ClusterPicture,
    HookCall,
    HookGone,
    HostPicture,
    Message,
    NodesPicture,
    PolicyRead,
    PoolNews,
    Query,
    ReadFailed,
    Reread,
    Stop,
)
from backfill.engine.metering import Meter
from backfill.engine.notices import WaitingRoom
from backfill.engine.notify import Heartbeat, notify
from backfill.engine.observe import pool_changes
from backfill.engine.partitions import PartitionWatch
from backfill.engine.payload_book import PayloadBook
from backfill.engine.policyfile import PolicyFile
from backfill.engine.privacy import Privacy
from backfill.engine.rounds import Rounds
from backfill.engine.summary import summary
from backfill.engine.timekeeping import Timekeeper
from backfill.engine.watch import Watch
from backfill.engine.workers import Workers
from backfill.ports.storage import Journal, Record

_LOG = logging.getLogger("backfill.daemon")
_LONGEST_WAIT_S = 1.0
_SUMMARY_EVERY_S = 60.0
_TIDY_EVERY_S = 3600.0
_SIZE_EVERY_S = 60.0
_HOSTS_EVERY_S = 5.0
_PRIVACY_EVERY_S = 60.0
_READY_WITHIN_S = 30.0  # who misses this one would end us


@dataclass(frozen=True, slots=True)
class Pace:
    """The intervals at which the outside is read. Seconds."""

    poll_s: float = 2.0
    host_poll_s: float = 5.0
    watch_s: float = 0.03
    workers: int = 16
    policy_s: float = 0.0  # how often the policy file is looked at; 0: never by itself
    full_pass_s: float = 30.0  # how often a plan looks at everything; 0: never by itself
    pool_s: float = 30.0  # how often the pool outside is asked, where there is one


class Right(Protocol):
    """The right to act: we are still the one daemon of this cluster."""

    lost: str  # to whom

    def doubt(self) -> str | None:
        """Return the reason to do no more than give hosts back now; None: nothing is in doubt."""


class Undisputed:
    """Nobody keeps us from acting."""

    lost = ""

    def doubt(self) -> str:
        """Never any."""
        return ""


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
        right: Right | None = None,
    ) -> None:
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.refused = Refused()  # hooks that were not believed
        self.world = World()
        self.journal = journal
        self.meter = Meter(self.world)
        self.losses, self.payloads = LossBook(), PayloadBook()
        self.harvest = HarvestBook(self.world, self.meter)
        self.privacy = Privacy(outside.manager.settings)
        self.cycle = Cycle(
            self.world,
            policies,
            journal,
            self._begin,
            self._answer,
            full_pass_s=pace.full_pass_s,
            meter=self.meter,
            spare=True,
        )
        self.outside = outside
        self._timekeeper = Timekeeper(outside.clock, self.cycle, journal)
        self._pace = pace
        self.policyfile = policyfile if policyfile is not None else PolicyFile()
        self._right = right if right is not None else Undisputed()
        self._tidy = tidy  # what is to be done once an hour, such as pruning the journal
        self._workers = Workers(outside, self.inbox, pace.workers)
        self._waiting = WaitingRoom(self.cycle, self._workers.tell)
        self._addresses = AddressBook(self.cycle, self._workers.look_up)
        self._partitions = PartitionWatch(self.cycle, self._workers.rebuild_partitions)
        self._watch = Watch(pace.watch_s)
        self._driver = CycleDriver(self.cycle, self._watch)
        self._sources = ("slurm", *outside.providers)
        self._desk = HookDesk(
            self.world,
            self._watch,
            self._sources,
            self.poke,
            lambda: bool(self.cycle.policies.devices.entries),
            self.refused,
        )
        self._asked = Asked()
        self._said = ""
        self._said_s = 0.0
        self.journal_bytes: int | None = None  # as it was looked up last
        self._rounds = Rounds()
        self._heartbeat = Heartbeat(self._rounds.late_s)

    # --- life ----------------------------------------------------------------------------------

    def recall(self) -> int:
        """Take from the journal what only we know; returns the number of managed nodes."""
        self.losses.recall(self.journal)
        self.harvest.recall(self.journal)
        self.payloads.recall(self.journal)
        return self._timekeeper.recall()

    def run(self) -> str:
        """Work until a Stop message comes; returns its reason."""
        # A waiting hook must not wait for a long slice of another thread.
        sys.setswitchinterval(0.001)
        self.cycle.tick(self.outside.clock.now())
        known = self.recall()
        self._note_hosts()
        self.cycle.record("daemon", "cluster", {"event": "start", "managed": known})
        _LOG.info("started; %d managed nodes are known from the journal", known)
        self._start_rounds()
        notify("READY=1", within_s=_READY_WITHIN_S)
        try:
            return self._loop()
        finally:
            self._rounds.close()
            self._workers.close()
            notify("STOPPING=1")

    def _start_rounds(self) -> None:
        for source in self._sources:
            every_s = self._pace.poll_s if source == "slurm" else self._pace.host_poll_s
            self._rounds.add(every_s, partial(self._workers.observe, source))
            self._workers.observe(source)
        if self.outside.pool is not None:
            self._rounds.add(self._pace.pool_s, self._workers.read_pool)
            self._workers.read_pool()
        self._rounds.add(_TIDY_EVERY_S, self._tidy, slow=True)
        self._rounds.add(_SIZE_EVERY_S, self._look_at_size, slow=True)
        self._rounds.once(self._look_at_size)
        self._rounds.add(HARVEST_EVERY_S, self._look_at_harvest)
        self._rounds.add(_HOSTS_EVERY_S, self._look_at_hosts)
        self._look_at_harvest()
        self._rounds.add(_PRIVACY_EVERY_S, self.privacy.read, slow=True)
        if self._pace.policy_s > 0:
            self._rounds.add(self._pace.policy_s, self.reread, slow=True)
        self._rounds.start()

    def _look_at_hosts(self) -> None:
        self.inbox.put(Query(self._hold_hosts))

    def _hold_hosts(self) -> Generator[None, None, None]:
        self._note_hosts()
        yield

    def _note_hosts(self) -> None:
        """Say which hosts must stay what they are."""
        self.outside.book.hold({node.host for node in self.world.managed.values()})

    def _look_at_size(self) -> None:
        """Beside our thread: its disk may hang."""
        self.journal_bytes = self.journal.size_bytes()

    def _look_at_harvest(self) -> None:
        self.inbox.put(Query(self._book_harvest))

    def _book_harvest(self) -> Generator[None, None, None]:
        self._write((yield from self.harvest.look()))

    def _write(self, records: Iterable[Record]) -> None:
        for record in records:
            self.cycle.record(record.kind, record.subject, record.body)

    def poke(self, *sources: str) -> None:
        """Read these sources (all, if none is named) now; callable from any thread."""
        for source in sources or self._sources:
            self._workers.observe(source)

    def reread(self, *, force: bool = False) -> None:
        """Read the policy file again if it has changed or if `force`; in any thread but ours."""
        reading = self.policyfile.read(force=force)
        if reading is not None:
            self.inbox.put(PolicyRead(reading))

    # --- the loop ------------------------------------------------------------------------------

    def _loop(self) -> str:
        while True:
            messages = self._next()
            began_s = time.perf_counter()
            stop = next((m for m in messages if isinstance(m, Stop)), None)
            if stop is not None:
                self._write(self.harvest.rest())
                self.cycle.record("daemon", "cluster", {"event": "stop", "why": stop.why})
                return stop.why
            doubt = self._right.doubt()
            if self._right.lost:
                why = self._right.lost
                self.cycle.record("daemon", "cluster", {"event": "stop", "why": why})
                return why
            now_s = self.outside.clock.now()
            questions = [m for m in messages if isinstance(m, Query)]
            self.cycle.tick(now_s)
            self.cycle.bar("lease", doubt or "")
            self._timekeeper.look()
            for message in messages:
                self._take(message, now_s)
            patience_s = self.cycle.policies.answer_within_s
            while (early := self._desk.take_early(now_s, patience_s)) is not None:
                self.cycle.take(early)
            self._driver.decide(now_s)
            self._book_losses()
            for question in questions:
                self._asked.begin(question)
            self._look(now_s)
            self._waiting.look(now_s)
            self._addresses.look(now_s)
            if any(isinstance(m, ClusterPicture | NodesPicture) for m in messages):
                self._partitions.look(now_s)
            self._say(now_s)
            self.meter.cycle(time.perf_counter() - began_s)
            self._asked.go_on()  # at least so much, however busy we are
            self._heartbeat.beat()

    def _book_losses(self) -> None:
        """Note in both books what came to nothing."""
        for lost in self.losses.news(self.meter.lost, self.world, self.cycle.policies):
            self.payloads.lost(lost)
            self.cycle.take([lost])

    def _next(self) -> list[Message]:
        """Wait for something to do; take everything that is there."""
        now_s = self.outside.clock.now()
        wait_s = min(_LONGEST_WAIT_S, max(0.001, self._driver.due_s(now_s) - now_s))
        wait_s = min(wait_s, self._desk.due_in_s(now_s, self.cycle.policies.answer_within_s))
        if self._asked.go_on_while(self.inbox.empty, wait_s):
            wait_s = 0.0
        try:
            messages = [self.inbox.get(timeout=wait_s)] if wait_s else [self.inbox.get_nowait()]
        except Empty:
            return []
        while True:
            try:
                messages.append(self.inbox.get_nowait())
            except Empty:
                return messages

    def _take(self, message: Message, now_s: float) -> None:
        """Take a message into the world, or see to it otherwise."""
        match message:
            case ClusterPicture() | NodesPicture() | HostPicture() | ReadFailed():
                self._driver.take_picture(message, now_s)
            case CallResult():
                self.meter.called(message.action, message.elapsed_s, message.problem)
                if message.problem:
                    _LOG.warning("%s failed: %s", message.action.key, message.problem)
                if hosts := self._driver.take_result(message, now_s) & set(self._sources):
                    self.poke(*hosts)
            case HookCall():
                self.meter.hook(message.event)
                self.cycle.take(self._desk.take(message, now_s))
            case HookGone() | PolicyRead() | AddressNews() | PoolNews() | Reread():
                self._news(message)
            case Query() | Stop():
                pass

    def _news(self, message: HookGone | PolicyRead | AddressNews | PoolNews | Reread) -> None:
        """Handle a message that is no news of Slurm or of a host."""
        match message:
            case HookGone():
                self._desk.forget(message.call)
            case PolicyRead():
                self.policyfile.take(message.reading, self.cycle)
            case PoolNews():
                self.cycle.take(pool_changes(self.world, message.seen, message.problem))
                runs, clock_s = () if message.seen is None else message.seen.runs, self.world.clock_s
                self.cycle.take(self.payloads.news(runs, clock_s))
                self.payloads.settle(clock_s)
            case AddressNews():
                self._addresses.heard(message.found)
            case Reread():
                self._rounds.once(partial(self.reread, force=True))

    def _say(self, now_s: float) -> None:
        """One sentence per cycle; the same sentence again only once a minute."""
        said = summary(self.world, self.cycle.last)
        if said != self._said or now_s - self._said_s > _SUMMARY_EVERY_S:
            _LOG.info("%s", said)
            notify(f"STATUS={visible(said)}")  # a second line would be another word of ours
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
