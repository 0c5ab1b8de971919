"""Work that was lost because of us: seen, booked by day, workload and cause, and known after a restart."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host, InstanceState
from backfill.core.model.lifecycle import Cause, Condemned, ManagedNode, NodeStop, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.records import encode
from backfill.core.policies.workloads import ReadyMade, Workload, Workloads
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.loss_book import LossBook
from backfill.engine.metering import Meter
from backfill.ports.storage import Record
from backfill.ui.commands.look import _lost
from tests.component.test_metrics import instance
from tests.unit.test_stops import POLICIES

NOON_S = datetime(2026, 11, 24, 12, tzinfo=UTC).timestamp()
RULES = replace(
    POLICIES, workloads=Workloads((Workload("pilots", like=ReadyMade.CONDOR, job_name="pilot*"),))
)


class Day:
    """A node on which a job works from noon on, and the book of what is lost there."""

    def __init__(self, name: str = "pilot 1") -> None:
        self.world = World()
        self.meter, self.book = Meter(self.world), LossBook()
        self.take(ch.Tick(NOON_S))
        self.node = ManagedNode("vn1", "10.0.0.1/8", "h", 1, Phase.READY, NOON_S, NOON_S)
        self.take(ch.HostSeen(Host("h", "h", Resources(8, 8)), NOON_S))
        self.take(ch.NodeManaged(self.node))
        self.take(ch.InstanceSeen(instance("vn1", InstanceState.RUNNING), NOON_S))
        self.job = Job("7", 7, "htc", JobState.RUNNING, name=name, nodes=("vn1",), cpus=2)
        self.take(ch.JobSeen(self.job, NOON_S))

    def take(self, change: ch.Change) -> None:
        self.world.apply(change)
        self.meter.took(change, None)

    def after(self, for_s: float, job: Job, **record: object) -> list[ch.WorkLost]:
        """The node's record and the job are otherwise so much later: what is booked."""
        self.take(ch.Tick(NOON_S + for_s))
        self.take(ch.NodeManaged(replace(self.node, **record)))  # type: ignore[arg-type]  # its own fields
        self.take(ch.JobSeen(job, NOON_S + for_s))
        return list(self.book.news(self.meter.lost, self.world, RULES))


def requeued(job: Job) -> Job:
    return replace(job, state=JobState.PENDING, nodes=(), restarts=1)


def test_a_run_whose_patience_was_over_is_booked_with_its_workload() -> None:
    """So many core seconds, on its day; once."""
    day = Day()
    gone = Condemned(Cause.PATIENCE, NOON_S + 60)
    (lost,) = day.after(60.0, requeued(day.job), phase=Phase.REMOVING, condemned=gone)
    assert (lost.workload, lost.cause, lost.core_s, lost.name) == ("pilots", "patience", 120.0, "vn1")
    assert day.after(61.0, requeued(day.job), phase=Phase.REMOVING, condemned=gone) == []
    (line,) = day.book.told()
    assert line == {
        "day": "2026-11-24",
        "workload": "pilots",
        "cause": "patience",
        "runs": 1,
        "core_s": 120.0,
    }


def test_one_that_was_given_back_at_once_is_told_apart_from_the_ladders_end() -> None:
    """Its stop began with the rung that ends work, because a long stay was foreseen."""
    for foreseen, cause in ((True, "foreseen"), (False, "ladder")):
        day = Day()
        stop = NodeStop(NOON_S, rung=2, first=2, foreseen=foreseen)
        gone = Condemned(Cause.LADDER, NOON_S + 60)
        (lost,) = day.after(60.0, requeued(day.job), phase=Phase.EVICTING, stop=stop, condemned=gone)
        assert lost.cause == cause


def test_one_that_ended_when_it_was_told_to_counts_and_one_that_just_ended_does_not() -> None:
    """What of it was in vain its pool knows; at most it is all."""
    day = Day("other")
    ended = replace(day.job, state=JobState.FAILED)
    (lost,) = day.after(60.0, ended, phase=Phase.EVICTING, stop=NodeStop(NOON_S, warned_s=NOON_S + 50))
    assert (lost.workload, lost.cause) == ("", "warned")
    day = Day()
    assert day.after(60.0, replace(day.job, state=JobState.COMPLETED)) == []


def test_what_others_have_requeued_is_none_of_ours() -> None:
    """It is booked all the same, as such."""
    day = Day()
    (lost,) = day.after(60.0, requeued(day.job))
    assert lost.cause == "others"


def test_the_book_is_known_after_a_restart_and_shown_in_the_status() -> None:
    """The latest day first, and all together."""
    journal = MemoryJournal()
    for number, (cause, days) in enumerate((("patience", 0), ("ladder", 1), ("ladder", 1))):
        at_s = NOON_S - days * 86400
        lost = ch.WorkLost("7", number, "vn1", at_s, "pilots", cause, 3600.0)
        journal.append([Record(at_s, "change", "vn1", encode(lost))])
    book = LossBook()
    book.recall(journal)
    assert _lost(book.told()) == [
        "2026-11-24  1.00 core h of 1 run, by patience of pilots",
        "2026-11-23  2.00 core h of 2 runs, by ladder of pilots",
        "in all    3.00 core h of 3 runs",
    ]
