"""A compressed day of pilots on demand: each payload is completed once, and little of it is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.osg_day import KILLING, OURS, Draw, play, told

pytestmark = [pytest.mark.real, pytest.mark.soak]

# Three times this, and what it takes to begin and to end, is well within an hour on a busy machine.
DRAW = Draw(for_s=480.0, seed=1, every_s=90.0, stay_s=30.0)


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRig]:
    with pool_lab("osg-day") as made:
        made.cluster.begin()
        made.cluster.start()
        yield made
        made.clear()
        made.cluster.settle()


def test_a_day_of_pilots_beside_its_rivals(pool: PoolRig) -> None:
    """The same draw under all: no payload is at work twice at once, and ours loses at most 3 %."""
    ours = play(pool, "ours", DRAW, OURS)
    killing = play(pool, "killing", DRAW, KILLING)
    never = play(pool, "never evicting", DRAW, OURS, patient=True)
    table = told([ours, killing, never])
    print(table)
    for day in (ours, killing, never):
        assert (day.overlaps, day.twice) == ([], []), table
    assert ours.evictions > 5, table
    assert ours.lost <= 0.03, table
    assert ours.badput_s < killing.badput_s, table
