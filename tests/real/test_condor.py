"""A real pool's pilot, pushed aside: its payload goes on, and the pool books it once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.daemon_rig import PAUSE, REQUEUE

pytestmark = [pytest.mark.real, pytest.mark.gate]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRig]:
    with pool_lab("pilots", hosts=1) as made:
        made.cluster.begin()
        made.cluster.start(ladder=[PAUSE, REQUEUE], limits={"max_instances": 1})
        yield made
        made.cluster.settle()


def test_a_payload_survives_a_short_pause_of_its_pilot(pool: PoolRig) -> None:
    """The pilot is an ordinary user's batch job; nobody in the pool notices that it stood still."""
    rig = pool.cluster
    name, payload = pool.payload(60, 0.2)
    pilot = pool.pilot()
    pool.working(name)
    _, host = rig.where(pilot)
    high = rig.high(host)
    began_s = rig.started(high)
    rig.until(lambda: rig.state(pilot) == "SUSPENDED", what="the pilot suspended")
    rig.assert_silent(name, began_s, rig.release(high))
    booked = pool.ended(payload)
    assert (booked["ExitCode"], booked["NumJobStarts"], booked["NumShadowStarts"]) == (0, 1, 1)
    assert [line.split()[4] for line in rig.tally(name)] == [*map(str, range(1, 61)), "end"]
    assert rig.show(pilot)["Restarts"] == "0"
