"""The book of the harvest: exact for work, a minute's worth for the rest, and kept over restarts."""

from __future__ import annotations

from collections.abc import Generator

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.harvest_book import HarvestBook
from backfill.engine.metering import Meter
from backfill.ports.storage import Record

HOUR_S = 3600.0
BEGAN_S = 1000 * HOUR_S


class Counted(Meter):
    """Has worked and lost as much as its test says."""

    done = (0.0, 0.0)

    @property
    def harvested(self) -> tuple[float, float]:
        return self.done


def _world() -> World:
    """Two hosts of four cores; on one of them a job has three."""
    world = World()
    world.apply(ch.Tick(BEGAN_S))
    for name in ("bm1", "bm2"):
        world.apply(ch.HostSeen(Host(name, name, Resources(4, 1000)), BEGAN_S))
    job = Job("7", 7, "batch", JobState.RUNNING, nodes=("bm1",), cpus=3)
    world.apply(ch.JobSeen(job, BEGAN_S))
    return world


def _end(slices: Generator[None, None, list[Record]]) -> list[Record]:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            found: list[Record] = end.value
            return found


def test_room_and_metal_are_looked_at_and_work_is_exact() -> None:
    world = _world()
    meter = Counted(world)
    book = HarvestBook(world, meter)
    assert _end(book.look()) == []
    world.apply(ch.Tick(BEGAN_S + 60.0))
    meter.done = (123.5, 23.5)
    assert _end(book.look()) == []
    assert book.told() == [
        {"from_s": BEGAN_S, "room": 8 * 60.0, "metal": 3 * 60.0, "worked": 123.5, "lost": 23.5}
    ]


def test_what_nobody_looked_at_is_not_guessed() -> None:
    """Of the time a machine slept nobody knows its idle cores; its work was counted all the same."""
    world = _world()
    meter = Counted(world)
    book = HarvestBook(world, meter)
    _end(book.look())
    world.apply(ch.Tick(BEGAN_S + 2 * HOUR_S))
    meter.done = (50.0, 0.0)
    _end(book.look())
    assert book.told() == [
        {"from_s": BEGAN_S + 2 * HOUR_S, "room": 0.0, "metal": 0.0, "worked": 50.0, "lost": 0.0}
    ]


def test_the_journal_keeps_it_over_restarts() -> None:
    """Written every ten minutes and at the end; the hour goes on where it was."""
    world, journal = _world(), MemoryJournal()
    meter = Counted(world)
    book = HarvestBook(world, meter)
    _end(book.look())
    for minute in range(1, 16):
        world.apply(ch.Tick(BEGAN_S + 60.0 * minute))
        meter.done = (minute * 10.0, 0.0)
        journal.append(_end(book.look()))
    journal.append(book.rest())
    assert book.rest() == []
    again = HarvestBook(world, Counted(world))
    again.recall(journal)
    assert again.told() == book.told()
    assert book.told()[0]["worked"] == 150.0


def test_old_hours_go() -> None:
    world, journal = _world(), MemoryJournal()
    body: dict[str, object] = {"hour_s": 0.0, "room": 1.0, "metal": 0.0, "worked": 0.0, "lost": 0.0}
    late = {**body, "hour_s": BEGAN_S}
    journal.append(
        [Record(0.0, "harvest", "harvest", dict(body)), Record(BEGAN_S, "harvest", "harvest", late)]
    )
    book = HarvestBook(world, Counted(world))
    book.recall(journal)
    assert [hour["from_s"] for hour in book.told()] == [BEGAN_S]
