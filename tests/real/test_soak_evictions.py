"""Evictions of pilots in a row on a real pool: each payload is booked once, and never at work twice."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.real.condor_rig import COMPLETED, PoolRig, ads, pool_lab
from tests.real.daemon_rig import REQUEUE

pytestmark = [pytest.mark.real, pytest.mark.soak]

# So many evictions; as many as there is time for are worth it.
WANTED = int(os.environ.get("EVICTIONS", "60"))
# Each stands still well within the patience of a pool of the site's own.
PILOTS = {"name": "pilots", "like": "condor", "partitions": ["htc"]}
STANDING = {**PILOTS, "ladder": [{"rung": "pause", "within_s": 20, "for_s": 250}, REQUEUE]}
PERIOD_S, WORDS = 0.5, 60
BACK_S = 300.0
# A payload that opens its connection while its guest's cable is out ends at once (docs/htcondor.md).
_AGAIN = "max_retries = 5"


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRig]:
    with pool_lab("evictions") as made:
        made.cluster.begin()
        made.cluster.start(workloads=[STANDING], limits={"max_instances": 2, "max_per_host": 1})
        yield made
        made.clear()
        made.cluster.settle()


class Host:
    """A host that is wanted again and again, once its pilot has worked for as long as it stood still.

    So a stop is paid back before the next one, and no patience ever ends (docs/workloads.md).
    """

    def __init__(self, pool: PoolRig, name: str, pilot: str) -> None:
        self.rig, self.name, self.pilot = pool.cluster, name, pilot
        self.job, self.evictions = "", 0
        self.wanted_s = self.back_s = time.time()

    def turn(self) -> None:
        """Want it, or give it back, once what went before is over; fail if that takes too long."""
        now_s = time.time()
        if self.job:
            if self.rig.has_started(self.job) and self.rig.state(self.pilot) == "SUSPENDED":
                self.evictions += 1
                self.rig.release(self.job)
                self.job, self.back_s = "", 0.0
        elif not self.back_s:
            self.back_s = now_s if self._is_back() else 0.0
        elif now_s > self.back_s + (self.back_s - self.wanted_s):
            self.job, self.wanted_s = self.rig.high(self.name, "-t", "2", start=False), now_s
        assert self.back_s or now_s < self.wanted_s + BACK_S, self.rig.picture()

    def _is_back(self) -> bool:
        ready = any(n["host"] == self.name and n["phase"] == "ready" for n in self.rig.nodes().values())
        return ready and self.rig.state(self.pilot) == "RUNNING"


def submitted(pool: PoolRig) -> tuple[str, str]:
    """A payload: its number in the pool, and its name in the tally."""
    name, number = pool.payload(WORDS, PERIOD_S, _AGAIN)
    return number, name


def test_no_payload_is_lost_or_run_twice(pool: PoolRig) -> None:
    """By the pool's books and by the payloads' own words."""
    rig = pool.cluster
    names = dict(submitted(pool) for _ in range(4))
    pilots = [pool.pilot() for _ in rig.lab.hosts]
    for name in [*names.values()][:2]:
        pool.working(name)
    hosts = [Host(pool, rig.where(pilot)[1], pilot) for pilot in pilots]
    began_s = time.time()
    while sum(host.evictions for host in hosts) < WANTED:
        for host in hosts:
            host.turn()
        if not any(ad["JobStatus"] == 1 for ad in ads(pool.pool("condor_q", "-allusers", "-json"))):
            names.update([submitted(pool)])
    took_s = time.time() - began_s
    rig.release(*(host.job for host in hosts if host.job))
    for payload in names:
        pool.ended(payload)
    lost_s, runs_lost, failed = in_vain(pool, names)
    restarts = [rig.show(pilot)["Restarts"] for pilot in pilots]
    print(
        f"{sum(host.evictions for host in hosts)} evictions in {took_s:.0f} s; {len(names)} payloads done, "
        f"each booked once; {runs_lost} runs and {lost_s:.0f} s lost, {failed} failed as they began; "
        f"pilots requeued: {', '.join(restarts)}"
    )
    assert lost_s <= 0.03 * (lost_s + len(names) * WORDS * PERIOD_S)


def in_vain(pool: PoolRig, names: dict[str, str]) -> tuple[float, int, int]:
    """How long payloads worked in vain, in how many runs, and how many runs failed as they began.

    No payload may be lost, or at work twice.
    """
    asked = ("-json", "-attributes", "ClusterId,JobStatus,ExitCode,NumJobCompletions")
    booked = [ad for ad in ads(pool.pool("condor_history", *asked)) if ad["JobStatus"] == COMPLETED]
    assert sorted(f"{ad['ClusterId']}.0" for ad in booked) == sorted(names)
    assert {ad["ExitCode"] for ad in booked} == {0}
    runs: dict[str, dict[str, list[tuple[float, str]]]] = defaultdict(lambda: defaultdict(list))
    for line in pool.cluster.tally():
        at_s, connection, name, _, item, *_ = line.split()
        runs[name][connection].append((float(at_s), item))
    lost_s, runs_lost = 0.0, 0
    for name in names.values():
        said = sorted(runs[name].values())
        assert said, f"{name} is booked, and has said nothing: {pool.events(name)}"
        assert all(one[-1][0] < other[0][0] for one, other in pairwise(said)), (name, said)
        assert [item for _, item in said[-1]] == [*map(str, range(1, WORDS + 1)), "end"], (name, said)
        lost_s += sum(len(run) * PERIOD_S for run in said[:-1])
        runs_lost += len(said) - 1
    return lost_s, runs_lost, sum(ad["NumJobCompletions"] - 1 for ad in booked)
