"""The least that pilots on disk can lose where no host is spare, if no job at work is ended for them.

The hosts, stays and payloads of scenarios/long/osg_500. Each stopped payload gets the first room that it can
use: its own host's, or that of a payload that ends elsewhere, the one that can wait least first. A payload
without one in time is lost, with all that it had computed. Two arguments: hours (400), seed (1).
"""

from __future__ import annotations

import heapq
import json
import math
import random
import sys
from dataclasses import dataclass

HOSTS = 16
EVERY_S, STAY_S, SIGMA = 1800.0, 300.0, 1.0
RUN_S = 600.0
BOOT_S = 6.0
# Of a gigabyte, as in backfill/drivers/simulated/costs.py: read at home; moved, and read there.
HOME_S, MOVE_S = 9.5, 16.0
PATIENCE_S = {"condor": 300.0, "ospool": 60.0}
_TAKEN, _ENDS, _FREE = range(3)


@dataclass(frozen=True, slots=True, order=True)
class Stopped:
    """A payload that waits: until when, its host, and for how long it has computed."""

    until_s: float
    home: int
    age_s: float


class Rooms:
    """One draw of stays, and what becomes of the payloads."""

    def __init__(self, patience_s: float, hours: float, seed: int) -> None:
        self.patience_s, self.end_s = patience_s, hours * 3600.0
        self.good_s = self.vain_s = 0.0
        self.evictions = 0
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, int, int]] = []
        self._run: dict[int, tuple[float, float]] = {}  # by host: since when, and its age then
        self._begun = [0] * HOSTS
        self._waiting: list[Stopped] = []
        for host in range(HOSTS):
            self._want(host)
            self._begin(host, self._draw.random() * RUN_S, 0.0)

    def _want(self, host: int) -> None:
        """Who wants a taken host waits until it is free."""
        at_s = free_s = 0.0
        while at_s < self.end_s:
            at_s += self._draw.expovariate(1.0 / EVERY_S)
            stay_s = self._draw.lognormvariate(math.log(STAY_S), SIGMA)
            if at_s > free_s:
                self._events += [(free_s, _FREE, host, 0), (at_s, _TAKEN, host, 0)]
            free_s = max(at_s, free_s) + stay_s
        heapq.heapify(self._events)

    def _begin(self, host: int, at_s: float, age_s: float) -> None:
        self._begun[host] += 1
        self._run[host] = at_s, age_s
        heapq.heappush(self._events, (at_s + RUN_S - age_s, _ENDS, host, self._begun[host]))

    def _room(self, host: int, now_s: float) -> None:
        """Give the room of a host away: to a stopped payload, or to a new one."""
        self.vain_s += sum(one.age_s for one in self._waiting if one.until_s < now_s)
        self._waiting = sorted(one for one in self._waiting if one.until_s >= now_s)
        takes_s = {one: HOME_S if one.home == host else MOVE_S for one in self._waiting}
        usable = [one for one in self._waiting if now_s + takes_s[one] <= one.until_s]
        usable.sort(key=lambda one: one.home != host)
        if usable:
            self._waiting.remove(usable[0])
            self._begin(host, now_s + takes_s[usable[0]], usable[0].age_s)
        else:
            self._begin(host, now_s + BOOT_S, 0.0)

    def play(self) -> None:
        """Let the hours pass."""
        while self._events and self._events[0][0] < self.end_s:
            now_s, what, host, run = heapq.heappop(self._events)
            if what == _TAKEN and host in self._run:
                since_s, age_s = self._run.pop(host)
                age_s += max(0.0, now_s - since_s)
                self._begun[host] += 1
                self.evictions += 1
                self._waiting.append(Stopped(now_s + self.patience_s, host, age_s))
            elif what == _ENDS and run == self._begun[host]:
                self.good_s += RUN_S
                self._run.pop(host)
                self._room(host, now_s)
            elif what == _FREE and host not in self._run:
                self._room(host, now_s)


def main() -> None:
    """Print the least share of payload time that is lost, by pool."""
    hours, seed = float(sys.argv[1]) if sys.argv[1:] else 400.0, int(sys.argv[2]) if sys.argv[2:] else 1
    told = {}
    for like, patience_s in PATIENCE_S.items():
        one = Rooms(patience_s, hours, seed)
        one.play()
        told[like] = {
            "evictions": one.evictions,
            "lost_percent": round(100.0 * one.vain_s / (one.vain_s + one.good_s), 2),
        }
    print(json.dumps({"rooms": told}))


if __name__ == "__main__":
    main()
