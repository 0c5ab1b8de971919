"""The book of the harvest by hours: what hosts had, what their own jobs took, what instances made of it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

from backfill.core.world import World
from backfill.engine.families import Body
from backfill.ports.storage import Journal, Record, RecordWindow

if TYPE_CHECKING:
    from backfill.engine.metering import Meter

KIND = "harvest"  # of its records, and their subject
EVERY_S = 60.0  # how often it is looked, which is how exact the figures are
_HOUR_S, _MOST_HOURS = 3600.0, 8 * 24
_WRITTEN_EVERY_S = 600.0
# What was not looked at for longer is not known: the daemon stood still, or the machine slept.
_LONGEST_S = 3 * EVERY_S
_PAGE, _PAGE_BYTES, _AT_ONCE = 500, 1 << 20, 256


@dataclass(slots=True)
class HarvestHour:
    """Core seconds of one hour. `room`: of all hosts that answered; `metal`: of it, given to jobs on
    the hosts' own nodes; `worked`: by jobs on instances; `lost`: work that came to nothing then."""

    room: float = 0.0
    metal: float = 0.0
    worked: float = 0.0
    lost: float = 0.0

    def add(self, more: HarvestHour) -> None:
        """Add the figures of a part of the hour."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(more, one.name))


class HarvestBook:
    """Belongs to the daemon's thread; the journal keeps it over restarts, but for the last minutes."""

    def __init__(self, world: World, meter: Meter) -> None:
        self._world, self._meter = world, meter
        self._hours: dict[float, HarvestHour] = {}
        self._unwritten: dict[float, HarvestHour] = {}
        self._written_s = 0.0
        self._seen: tuple[float, float, float] | None = None  # when, worked and lost until then

    def recall(self, journal: Journal) -> None:
        """Take in what the journal still knows of the latest days."""
        window = RecordWindow(subject=KIND, newest=True)
        since_s = self._world.now_s - _MOST_HOURS * _HOUR_S
        while page := journal.page(window, _PAGE, _PAGE_BYTES):
            for record in page:
                if record.kind == KIND and record.at_s >= since_s:
                    told = {name: float(str(value)) for name, value in record.body.items()}
                    self._book(self._hours, told.pop("hour_s"), HarvestHour(**told))
            if page[-1].at_s < since_s:
                return
            window = RecordWindow(before_id=page[-1].id, subject=KIND, newest=True)

    def look(self) -> Generator[None, None, list[Record]]:
        """Book what has been since the last look; return what is to be written now. Made in slices."""
        room, metal = yield from self._cores()
        now_s, (worked, lost) = self._world.now_s, self._meter.harvested
        before, self._seen = self._seen, (now_s, worked, lost)
        if before is None:
            self._written_s = now_s
            return []
        past_s = now_s - before[0]
        if past_s > 0.0:
            known_s = past_s if past_s <= _LONGEST_S else 0.0
            part = HarvestHour(room * known_s, metal * known_s, worked - before[1], lost - before[2])
            hour_s = now_s // _HOUR_S * _HOUR_S
            self._book(self._hours, hour_s, part)
            self._book(self._unwritten, hour_s, part)
        for old in sorted(self._hours)[:-_MOST_HOURS]:
            del self._hours[old]
        return self.rest() if now_s - self._written_s >= _WRITTEN_EVERY_S else []

    def told(self) -> list[Body]:
        """Return all hours, the oldest first, each by its first second."""
        return [{"from_s": hour_s, **_rounded(hour)} for hour_s, hour in sorted(self._hours.items())]

    def rest(self) -> list[Record]:
        """Return what is booked and not written yet: from now on it counts as written."""
        now_s = self._world.now_s
        parts, self._unwritten, self._written_s = self._unwritten, {}, now_s
        return [
            Record(now_s, KIND, KIND, {"hour_s": hour_s, **_rounded(part)}) for hour_s, part in parts.items()
        ]

    def _cores(self) -> Generator[None, None, tuple[float, float]]:
        """Return the cores of hosts that answer, and those of them that jobs on their own nodes have."""
        room = metal = 0.0
        for number, host in enumerate([*self._world.hosts.values()], 1):
            if host.reachable:
                room += host.capacity.cpus
                metal += min(host.capacity.cpus, self._given(host.node))
            if number % _AT_ONCE == 0:
                yield
        return room, metal

    def _given(self, node: str | None) -> float:
        jobs = self._world.jobs_on(node) if node is not None else ()
        return sum(job.cpus / max(1, len(job.nodes)) for job in jobs if job.holds_nodes)

    def _book(self, hours: dict[float, HarvestHour], hour_s: float, part: HarvestHour) -> None:
        hours.setdefault(hour_s, HarvestHour()).add(part)


def _rounded(hour: HarvestHour) -> dict[str, object]:
    return {name: round(core_s, 3) for name, core_s in asdict(hour).items()}
