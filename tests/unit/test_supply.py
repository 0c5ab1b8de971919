"""How many pilots are wanted: as many as rooms are idle and payloads wait, and for how long each."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from backfill.core.model.refusals import Code
from backfill.core.policies.supply import Offer, Supply

SUPPLY = Supply(most=10)
NOTHING = Offer((), 0, (), 0, 0, 0)


def offer(rooms: tuple[float, ...] = (inf, inf), idle: int = 100, **more: object) -> Offer:
    return replace(NOTHING, rooms=rooms, idle=idle, **more)  # type: ignore[arg-type]


def test_nothing_is_sent_unless_the_policy_file_says_so() -> None:
    """It is off by default."""
    assert not Supply().on


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (offer(), 2),
        (offer(idle=1), 1),
        (offer(idle=0), 0),
        (offer(rooms=()), 0),
        (offer((inf,) * 30), 10),
        (offer((inf,) * 30, there=8), 2),
        (offer(others=1), 1),
        (offer(waiting=(inf,), there=1), 1),
        (offer(idle=2, fresh=1, there=1), 1),
        (offer(idle=2, fresh=2, there=2), 0),
    ],
)
def test_as_many_as_rooms_are_idle_and_payloads_wait(given: Offer, count: int) -> None:
    """Other jobs come first, pilots on their way count, and the cap is never passed."""
    assert len(SUPPLY.wanted(given).limits_s) == count


def test_a_pilot_takes_several_payloads_where_it_says_so() -> None:
    """Five payloads are two pilots of four."""
    assert len(replace(SUPPLY, payloads=4).wanted(offer((inf,) * 9, idle=5)).limits_s) == 2


def test_its_time_limit_is_as_long_as_its_room_is_free() -> None:
    """In whole minutes, never more than longest_s; too short a room gets none."""
    wanted = SUPPLY.wanted(offer((4000.0, 600.0, inf)))
    assert wanted.limits_s == (86400.0, 3960.0)


def test_a_pilot_that_waits_has_the_room_that_fits_it_best() -> None:
    """The long room stays for another one."""
    wanted = SUPPLY.wanted(offer((4000.0, inf), waiting=(3960.0,), there=1))
    assert wanted.limits_s == (86400.0,)


@pytest.mark.parametrize(
    ("given", "surplus"),
    [
        (offer(waiting=(60.0,) * 3, there=3), 1),
        (offer(waiting=(60.0,) * 2, there=2, idle=0), 2),
        (offer(waiting=(60.0,) * 2, there=2, others=5), 2),
        (offer(waiting=(60.0,) * 2, there=2), 0),
    ],
)
def test_what_waits_for_nothing_is_too_much(given: Offer, surplus: int) -> None:
    """Rooms have gone, others want them, or the payloads have."""
    assert SUPPLY.wanted(given).surplus == surplus


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (offer(idle=0), Code.POOL_EMPTY),
        (offer(rooms=()), Code.NO_IDLE_ROOM),
        (offer((600.0,)), Code.PILOT_GAP),
        (offer((inf,) * 30, there=10), Code.LIMIT),
    ],
)
def test_it_says_why_none_is_sent(given: Offer, code: Code) -> None:
    """One reason, the one that counts."""
    why = SUPPLY.wanted(given).why
    assert why is not None
    assert why.code is code
