"""A compressed day of pilots on a real lab: what becomes of payloads while others want their hosts.

Pilots are sent on demand and take payloads from a real pool; each host is wanted again and again, by
jobs of drawn lengths. One and the same draw is played under several policies in one run.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from backfill.lab.waiting import wait_until
from tests.real.condor_rig import COMPLETED, PoolRig, ads
from tests.real.daemon_rig import REQUEUE

PERIOD_S = 0.5  # between two words of a payload
PILOTS: dict[str, Any] = {"name": "pilots", "like": "condor", "partitions": ["htc"]}
# Ours, and what a site does that has no backfill: whoever wants a host ends what is there.
OURS: dict[str, Any] = {"workloads": [PILOTS]}
KILLING: dict[str, Any] = {"ladder": [REQUEUE], "victims": {"protect_after": 0}}
_SPEAKS_WITHIN_S = 60.0
_LIMIT_MIN = 4  # what the owners of high-priority jobs ask for, less than a pilot's patience


@dataclass(frozen=True)
class Draw:
    """What is played: a time for all of it, and the means of what is drawn by the seed, seconds."""

    for_s: float
    seed: int
    every_s: float = 180.0
    stay_s: float = 45.0
    shortest_s: int = 20
    longest_s: int = 90

    def payloads(self, hosts: int) -> list[int]:
        """Lengths of more payloads than there is time for."""
        draw = random.Random(f"payloads {self.seed}")
        count = int(hosts * self.for_s / ((self.shortest_s + self.longest_s) / 2)) + hosts
        return [draw.randint(self.shortest_s, self.longest_s) for _ in range(count)]

    def wanted(self, host: str) -> list[tuple[float, float]]:
        """When the host is wanted, s after the begin, and for how long."""
        draw, at_s = random.Random(f"wanted {self.seed} {host}"), 0.0
        found = []
        while (at_s := at_s + draw.expovariate(1.0 / self.every_s)) < self.for_s:
            stay_s = min(draw.lognormvariate(math.log(self.stay_s), 0.7), _LIMIT_MIN * 60.0 - 30.0)
            found.append((at_s, stay_s))
            at_s += stay_s
        return found


@dataclass
class DayResult:
    """What came of it. Times in s; `waits`: from sbatch to the script's first command."""

    name: str
    capacity_s: float
    done: int = 0
    goodput_s: float = 0.0
    lost_runs: int = 0
    badput_s: float = 0.0
    high_s: float = 0.0
    evictions: int = 0
    waits: list[float] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)  # payloads of which two copies were at work at once
    twice: list[str] = field(default_factory=list)  # payloads that the pool booked more than once

    @property
    def lost(self) -> float:
        """Badput as a share of all that payloads worked."""
        return self.badput_s / max(1.0, self.goodput_s + self.badput_s)

    def line(self) -> str:
        """One row of the table."""
        idle_s = self.capacity_s - self.goodput_s - self.badput_s - self.high_s
        cells = [f"{100 * s / self.capacity_s:.1f} %" for s in (self.goodput_s, self.badput_s, idle_s)]
        waits = sorted(self.waits) or [0.0]
        cells += [f"{100 * self.lost:.1f} %", str(self.done), str(self.lost_runs), str(self.evictions)]
        cells += [f"{sum(waits) / len(waits):.2f} s", f"{waits[int(0.95 * len(waits))]:.2f} s"]
        return f"{self.name:16}" + "".join(f"{cell:>11}" for cell in cells)


TITLE = f"{'':16}" + "".join(
    f"{title:>11}"
    for title in (
        *("goodput", "badput", "idle", "lost", "payloads", "runs lost", "evictions"),
        *("waits", "waits, p95"),
    )
)


def supply(pool: PoolRig) -> dict[str, Any]:
    """Pilots as the lab's user sends them."""
    options = ["--output=/dev/null"]
    script = {"user": "ada", "partition": "htc", "script": str(pool.script()), "directory": "/tmp"}
    return {"most": 2, **script, "options": options, "keep_s": 600, "seen_after_s": 20}


def play(pool: PoolRig, name: str, draw: Draw, policy: dict[str, Any], *, patient: bool = False) -> DayResult:
    """Play the draw under a policy, and take stock by the pool's books and the payloads' own words.

    `patient`: whoever wants a host waits until the payload there has ended.
    """
    rig = pool.cluster
    limits = {"max_instances": 2, "max_per_host": 1, "destroys_per_min": 60, "destroys_per_hour": 3600}
    rig.begin()
    rig.restart(supply=supply(pool), limits={**limits, "creates_per_hour": 10_000}, **policy)
    named: dict[str, str] = {}  # by their numbers in the pool
    for length_s in draw.payloads(len(rig.lab.hosts)):
        payload, number = pool.payload(round(length_s / PERIOD_S), PERIOD_S)
        named[number] = payload
    rig.until(lambda: len({line.split()[2] for line in rig.tally()}) >= 2, what="two payloads at work")
    began_s = time.time()
    result = DayResult(name, draw.for_s * len(rig.lab.hosts))
    _turns(pool, draw, began_s, result, patient=patient)
    ended_s = time.time()
    result.capacity_s = (ended_s - began_s) * len(rig.lab.hosts)
    _back_at_work(pool, ended_s)
    _take_stock(pool, named, (began_s, ended_s), result)
    pool.clear()
    rig.begin()  # what a payload says in a second run is no fault here
    return result


def _turns(pool: PoolRig, draw: Draw, began_s: float, result: DayResult, *, patient: bool) -> None:
    """Let the hosts be wanted as drawn."""
    rig = pool.cluster
    wanted = {host: draw.wanted(host) for host in rig.lab.hosts}
    there: dict[str, tuple[str, float, float]] = {}  # host -> job, when it was submitted, and its stay
    started: dict[str, float] = {}
    while time.time() < began_s + draw.for_s or there:
        for host, turns in wanted.items():
            now_s = time.time()
            if host in there:
                job, asked_s, stay_s = there[host]
                if job not in started and rig.has_started(job):
                    started[job] = rig.started(job)
                    result.waits.append(started[job] - asked_s)
                if job in started and now_s >= started[job] + stay_s:
                    result.high_s += rig.release(job) - started[job]
                    del there[host]
            elif turns and now_s >= began_s + turns[0][0]:
                wanted_s = began_s + turns[0][0]
                if patient and not _has_ended(pool, host, wanted_s):
                    continue
                _, stay_s = turns.pop(0)
                job = rig.high(host, "-t", str(_LIMIT_MIN), start=False)
                there[host] = (job, wanted_s if patient else time.time(), stay_s)
                result.evictions += 1
        time.sleep(0.2)  # nothing is awaited here: this is the day itself


def _has_ended(pool: PoolRig, host: str, since_s: float) -> bool:
    """Return True if a payload on this host has ended since then."""
    there = {name for name, node in pool.cluster.nodes().items() if node["host"] == host}
    lines = [line.split() for line in pool.cluster.tally()]
    return any(words[4] == "end" and words[6] in there and float(words[0]) > since_s for words in lines)


def _back_at_work(pool: PoolRig, since_s: float) -> None:
    """Wait until what stands still at the end of the day has said another word: it is not lost."""
    rig = pool.cluster

    def away() -> set[str]:
        return {name for name, node in rig.nodes().items() if node["phase"] not in ("booting", "ready")}

    def spoke() -> set[str]:
        words = (line.split() for line in rig.tally())
        return {word[-1] for word in words if float(word[0]) > since_s}

    still = away()
    rig.until(lambda: not still & away(), what="the return of what stood still")
    # One that was lost says nothing more; that is told in the table.
    wait_until(lambda: still <= spoke(), _SPEAKS_WITHIN_S)


def _take_stock(pool: PoolRig, named: dict[str, str], span: tuple[float, float], result: DayResult) -> None:
    """By the pool: which payloads are done. By their own words: what each run worked in this time."""
    asked = ("-json", "-attributes", "ClusterId,JobStatus,NumJobCompletions,NumJobStarts")
    history = ads(pool.pool("condor_history", *asked))
    booked = [f"{ad['ClusterId']}.0" for ad in history if ad["JobStatus"] == COMPLETED]
    done = {named[number] for number in booked if number in named}
    result.done = len(done)
    result.twice = [named[number] for number in set(booked) if number in named and booked.count(number) > 1]
    runs: dict[str, dict[str, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for line in pool.cluster.tally():
        at_s, connection, payload, _, item, *_ = line.split()
        runs[payload][connection].append((float(at_s), item))
    for payload, by_connection in runs.items():
        spans = sorted((words[0][0], words[-1][0]) for words in by_connection.values())
        result.overlaps += [payload for one, other in pairwise(spans) if other[0] < one[1]]
        for words in by_connection.values():
            times = [max(span[0], min(span[1], at)) for at, _ in words]
            worked_s = sum(min(b - a, 3 * PERIOD_S) for a, b in pairwise(times))
            ended = words[-1][1] == "end"
            if ended or words[-1][0] > span[1] - 10 * PERIOD_S:
                result.goodput_s += worked_s
            else:
                result.lost_runs += 1
                result.badput_s += worked_s


def told(results: list[DayResult]) -> str:
    """The table, and one line of JSON last."""
    rows = [
        {"name": r.name, "goodput_s": r.goodput_s, "badput_s": r.badput_s, "high_s": r.high_s, "done": r.done}
        for r in results
    ]
    return "\n".join([TITLE, *(r.line() for r in results), json.dumps({"osg_day": rows})])
