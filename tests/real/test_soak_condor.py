"""Pilots that stand still for a while, go to disk, or to another host: each payload ends once."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.daemon_rig import MIGRATE, REQUEUE, SUSPEND

pytestmark = [pytest.mark.real, pytest.mark.soak]

# As the ready-made workload of a pool of one's own, but for a pause of exactly so long.
PATIENCE_S = 360.0
STOP = {"rung": "pause", "within_s": 20, "for_s": 330}
PILOTS = {"name": "pilots", "like": "condor", "partitions": ["htc"]}
PATIENT = {**PILOTS, "stand_still_s": PATIENCE_S, "ladder": [STOP, REQUEUE]}
PERIOD_S = 0.2
# The host is wanted by one job after the other, each of which asks for less than a pilot's patience.
LIMIT_MIN, TURN_S = 5, 240.0


@pytest.fixture(scope="module")
def bed() -> Iterator[PoolRig]:
    with pool_lab("soak-pilots") as made:
        yield made


@pytest.fixture
def pool(bed: PoolRig) -> Iterator[PoolRig]:
    bed.cluster.begin()
    yield bed
    bed.clear()
    bed.cluster.settle()


def at_work(pool: PoolRig, count: int) -> tuple[str, str, str, str]:
    """A payload that counts in a pilot: its names in tally and pool, the pilot's job, and its host."""
    name, payload = pool.payload(count, PERIOD_S)
    pilot = pool.pilot()
    pool.working(name)
    return name, payload, pilot, pool.cluster.where(pilot)[1]


def wanted_for(pool: PoolRig, host: str, for_s: float) -> tuple[float, float]:
    """Let jobs have the host, one after the other; when it was taken, and given back."""
    rig = pool.cluster
    job = rig.high(host, "-t", str(LIMIT_MIN))
    began_s = rig.started(job)
    while (left_s := began_s + for_s - time.time()) > TURN_S:
        following = rig.high(host, "-t", str(LIMIT_MIN), start=False)
        time.sleep(TURN_S)  # nothing is awaited here: this is the stop itself
        rig.release(job)
        rig.started(following)
        job = following
    time.sleep(max(0.0, left_s))
    return began_s, rig.release(job)


def assert_once(pool: PoolRig, name: str, payload: str, count: int) -> None:
    """The pool has booked it once, and it has said each number once, over one connection."""
    booked = pool.ended(payload)
    assert (booked["ExitCode"], booked["NumJobStarts"], booked["NumShadowStarts"]) == (0, 1, 1)
    lines = [line.split() for line in pool.cluster.tally(name)]
    assert [line[4] for line in lines] == [*map(str, range(1, count + 1)), "end"]
    assert len({line[1] for line in lines}) == 1


@pytest.mark.parametrize("for_s", [10.0, 60.0, 300.0])
def test_a_stop_within_its_patience_goes_unnoticed(pool: PoolRig, for_s: float) -> None:
    """One start, one shadow, one connection, output delivered."""
    rig = pool.cluster
    rig.restart(workloads=[PATIENT], limits={"max_instances": 1})
    name, payload, pilot, host = at_work(pool, 200)
    rig.assert_silent(name, *wanted_for(pool, host, for_s))
    assert_once(pool, name, payload, 200)
    assert rig.show(pilot)["Restarts"] == "0"


def test_memory_on_disk_comes_back_with_its_payload(pool: PoolRig) -> None:
    """A suspend to disk within its patience is like a pause."""
    rig = pool.cluster
    suspend = {**PATIENT, "ladder": [{**SUSPEND, "within_s": 60, "for_s": 200}, REQUEUE]}
    rig.restart(workloads=[suspend], limits={"max_instances": 1}, proof="memory")
    name, payload, pilot, host = at_work(pool, 200)
    high = rig.high(host, "-t", str(LIMIT_MIN))
    vn, _ = rig.where(pilot)
    rig.until(lambda: rig.instances()[vn] == (host, "suspended"), what="its memory on disk")
    rig.release(high)
    assert_once(pool, name, payload, 200)
    assert rig.show(pilot)["Restarts"] == "0"


def test_a_payload_goes_on_at_another_host(pool: PoolRig) -> None:
    """Its host is wanted for longer than it could wait there."""
    rig = pool.cluster
    moving = {**PATIENT, "ladder": [STOP, MIGRATE, REQUEUE]}
    rig.restart(workloads=[moving], limits={"max_instances": 1})
    name, payload, pilot, host = at_work(pool, 300)
    rig.high(host, "-t", "600")
    rig.until(lambda: rig.where(pilot)[1] == rig.other(host), what="its move")
    assert_once(pool, name, payload, 300)
    assert rig.show(pilot)["Restarts"] == "0"
