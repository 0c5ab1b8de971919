"""Supply: how many pilots of our own wait in the queue, and for how long each may run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from backfill.core.model.keys import key
from backfill.core.model.refusals import Code, Reason, because, limit

_MINUTE_S = 60.0  # of which Slurm's time limits consist


@dataclass(frozen=True, slots=True)
class Offer:
    """What pilots are wanted for. Times in seconds.

    `rooms`: for how long each idle room is free as far as is known, infinite where nothing is;
    `others`: so many rooms go to jobs that are no pilots, or to stopped work. `waiting`: time limits of
    our pilots that wait; `fresh`: so many have begun and the pool may not have seen them; `there`: all
    of ours.
    """

    rooms: Sequence[float]
    others: int
    waiting: Sequence[float]
    fresh: int
    there: int
    idle: int


@dataclass(frozen=True, slots=True)
class PilotsWanted:
    """The time limits of pilots to be sent now, s; how many that wait are too many; and why not more."""

    limits_s: tuple[float, ...] = ()
    surplus: int = 0
    why: Reason | None = None


@dataclass(frozen=True, slots=True)
class Supply:
    """Pilots on demand: as many wait in Slurm's queue as rooms are idle and payloads wait in the pool.

     For sites where no compute element sends pilots. The pool is that of the section `condor`. A pilot
    takes a whole instance.
    """

    most: int = key(0, "How many pilots may wait or run at the same time; 0: none is ever sent.", most=9999)
    user: str = key("", "The ordinary user who runs them; never root.", form="name")
    partition: str = key("", "Their partition, one of priorities.low.", form="name")
    script: str = key(
        "", "The site's batch script that starts a pilot, on the daemon's machine.", form="path"
    )
    directory: str = key("", "Their working directory; empty: the user's home.", form="path")
    options: tuple[str, ...] = key((), "More options for sbatch, such as --account=osg.")
    payloads: int = key(1, "How many payloads a pilot has at the same time.")
    shortest_s: float = key(1200.0, "Room that is free for less than this gets no pilot.", least=60)
    longest_s: float = key(
        86400.0, "The longest time limit of a pilot, for room that is free for longer.", least=60
    )
    per_min: int = key(10, "How many may be sent within a minute.")
    keep_s: float = key(
        120.0, "How long a pilot that is no longer needed waits in the queue before it is withdrawn."
    )
    seen_after_s: float = key(60.0, "How long after its start a pilot counts as not yet known to the pool.")
    stale_after_s: float = key(180.0, "How long the pool's last answer counts.")
    failures: int = key(
        3, "After this many failed pilots none is sent until Slurm has forgotten one of them."
    )

    @property
    def on(self) -> bool:
        """Return True if pilots are sent at all."""
        return self.most > 0

    def wanted(self, offer: Offer) -> PilotsWanted:
        """Compare what is offered with what is there. Each pilot has the room that fits it best."""
        rooms = sorted(offer.rooms)
        for limit_s in sorted(offer.waiting, reverse=True):
            _take(rooms, limit_s)
        for _ in range(offer.others):
            _take(rooms, inf)
        useful = [room_s for room_s in rooms if room_s >= self.shortest_s]
        asked = -(-offer.idle // self.payloads)
        by_pool = asked - len(offer.waiting) - offer.fresh
        for_room = len(offer.rooms) - offer.others - len(offer.waiting)
        surplus = min(len(offer.waiting), max(0, len(offer.waiting) - asked, -for_room))
        count = min(len(useful), by_pool, self.most - offer.there)
        if count > 0:
            limits = sorted((self._limit_s(room_s) for room_s in useful), reverse=True)
            return PilotsWanted(tuple(limits[:count]))
        return PilotsWanted((), surplus, self._why_not(offer, rooms, useful))

    def _limit_s(self, room_s: float) -> float:
        return min(room_s, self.longest_s) // _MINUTE_S * _MINUTE_S

    def _why_not(self, offer: Offer, rooms: list[float], useful: list[float]) -> Reason | None:
        """Say what keeps a pilot from a room that is idle, or from a payload that waits."""
        if offer.idle == 0:
            return because(Code.POOL_EMPTY) if useful else None
        if offer.there >= self.most:
            return limit("supply.most", self.most)
        if rooms and not useful:
            return because(Code.PILOT_GAP, longest_s=max(rooms), needed_s=self.shortest_s)
        return None if useful else because(Code.NO_IDLE_ROOM, count=offer.idle)


def _take(rooms: list[float], wanted_s: float) -> None:
    """Take from the sorted rooms the shortest that is long enough, or else the longest."""
    if rooms:
        fits = next((at for at, room_s in enumerate(rooms) if room_s >= wanted_s), len(rooms) - 1)
        del rooms[fits]
