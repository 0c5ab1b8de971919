"""Pilots whose hosts are taken for 900 and for 1,500 s: ended before their pool gives them up, run once."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from backfill.core.model.changes import WorkLost
from backfill.core.model.records import decode
from tests.real.condor_rig import COMPLETED, PoolRig, pool_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# As docs/htcondor.md has it for a pool of one's own: 300 s of patience, and nothing else said.
PILOTS = {"name": "pilots", "like": "condor", "partitions": ["htc"]}
PATIENCE_S = 300.0
COUNT, PERIOD_S = 200, 0.2
# One job after the other, each of which asks for less than a pilot's patience: nobody foresees more.
LIMIT_MIN, TURN_S = 4, 180.0
STAYS_S = (900.0, 1500.0)
# The access point notices that a pilot has gone, and then waits for it until the lease is over: longer
# than a pilot's patience, and 600 s more.
LEASE = "job_lease_duration = 900"
AGAIN_WITHIN_S = 4000.0
# So late may words arrive that were said before the host was taken.
ON_THEIR_WAY_S = 0.5
# What the pool's log of a payload says when it no longer counts on a pilot: disconnected, evicted.
_GIVEN_UP = re.compile(r"^(?:022|004) \([^)]*\) (\S+ \S+)", re.MULTILINE)


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRig]:
    with pool_lab("long-pilots") as made:
        made.cluster.begin()
        yield made
        made.clear()
        made.cluster.begin()  # what a payload says in a second run is no fault here
        made.cluster.settle()


class Turns:
    """Jobs that have a host one after the other, for a time."""

    def __init__(self, pool: PoolRig, host: str, for_s: float) -> None:
        self.rig, self.host = pool.cluster, host
        self.job = self.rig.high(host, "-t", str(LIMIT_MIN))
        self.began_s = self.turn_s = self.rig.started(self.job)
        self.ends_s, self.ended_s = self.began_s + for_s, 0.0

    def go_on(self) -> bool:
        """End what has had its turn; False once the last one has."""
        now_s = time.time()
        if self.ended_s or now_s < min(self.ends_s, self.turn_s + TURN_S):
            return not self.ended_s
        if now_s >= self.ends_s:
            self.ended_s = self.rig.release(self.job)
            return False
        following = self.rig.high(self.host, "-t", str(LIMIT_MIN), start=False)
        self.rig.release(self.job)
        self.job, self.turn_s = following, self.rig.started(following)
        return True


def given_up_s(pool: PoolRig, name: str) -> float:
    """When the pool first said that it no longer counts on a payload's pilot; the machine's clock."""
    found = _GIVEN_UP.search(pool.events(name))
    assert found is not None, pool.events(name)
    return datetime.fromisoformat(found[1]).timestamp()


def completed(pool: PoolRig, payload: str) -> bool:
    """Return True once the pool has booked a payload."""
    return bool(pool.account(payload)["JobStatus"] == COMPLETED)


def runs(pool: PoolRig, name: str) -> list[list[tuple[float, str]]]:
    """What each run of a payload said, and when, the first run first."""
    said: dict[str, list[tuple[float, str]]] = {}
    for line in pool.cluster.tally(name):
        at_s, connection, _, _, item, *_ = line.split()
        said.setdefault(connection, []).append((float(at_s), item))
    return sorted(said.values())


def given_up(pool: PoolRig, pilot: str) -> list[WorkLost]:
    """What the daemon has noted of the pilot's runs that came to nothing."""
    told = [r.body for r in pool.cluster.journal("change") if r.body.get("t") == WorkLost.__name__]
    changes: list[Any] = [decode(body) for body in told]
    return [change for change in changes if change.job_id == pilot]


def test_a_payload_whose_host_is_taken_for_long_is_ended_in_time(pool: PoolRig) -> None:
    """Its pilot stands still for its patience and no longer; the pool starts it again, and books it once."""
    rig = pool.cluster
    rig.start(workloads=[PILOTS], limits={"max_instances": 2, "max_per_host": 1})
    named = dict(pool.payload(COUNT, PERIOD_S, LEASE) for _ in STAYS_S)
    pilots = [pool.pilot() for _ in STAYS_S]
    for name in named:
        pool.working(name)
    hosts = {rig.where(pilot)[1]: pilot for pilot in pilots}
    there = {line.split()[6]: line.split()[2] for line in rig.tally()}
    names = {host: there[rig.where(pilot)[0]] for host, pilot in hosts.items()}
    turns = [Turns(pool, host, for_s) for host, for_s in zip(hosts, STAYS_S, strict=True)]
    while sum(one.go_on() for one in turns):
        time.sleep(1.0)  # nothing is awaited here: this is the stop itself
    for one in turns:
        name, pilot = names[one.host], hosts[one.host]
        rig.until(partial(completed, pool, named[name]), AGAIN_WITHIN_S, f"the end of {name}")
        (lost,) = given_up(pool, pilot)
        assert lost.cause in ("patience", "foreseen"), lost
        assert one.began_s < lost.at_s < one.began_s + PATIENCE_S + 60.0, lost
        assert lost.at_s < given_up_s(pool, name), pool.events(name)
        booked = pool.account(named[name])
        assert (booked["ExitCode"], booked["NumJobCompletions"]) == (0, 1)
        said = runs(pool, name)
        # Its next run may begin on the other host before this one is free; the first one is over.
        assert said[0][-1][0] < one.began_s + ON_THEIR_WAY_S
        assert {run[0][1] for run in said} == {"1"}  # none of them goes on where another one stood
        assert all(a[-1][0] < b[0][0] for a, b in pairwise(said)), said
        assert [item for _, item in said[-1]] == [*map(str, range(1, COUNT + 1)), "end"]
        assert [run[-1][1] for run in said].count("end") == 1
        print(f"{name}: host taken for {one.ended_s - one.began_s:.0f} s; ended by {lost.cause} after")
        print(f"  {lost.at_s - one.began_s:.0f} s; the pool gave it up after")
        print(f"  {given_up_s(pool, name) - one.began_s:.0f} s, and it began anew after")
        print(f"  {said[-1][0][0] - one.began_s:.0f} s; {len(said)} runs")
