"""Moments that were written down before a clock was set, and what a restart makes of them."""

from __future__ import annotations

import pytest

from backfill.core.model.changes import ClockRead, ClockSet, FleetSet, HoldSet, NodeManaged
from backfill.core.model.clock import Move, as_now, as_then, moved_s
from backfill.core.model.fleet import Checkpoint, Fleet, FleetState
from backfill.core.model.lifecycle import HeldJob, ManagedNode, Phase, RefusedSuspend, Retry
from backfill.core.model.records import began, encode, remembered
from backfill.core.policies.checkpoints import Checkpoints
from backfill.core.world import World

NOW_S = 1_700_000_000.0


def test_a_clock_set_forward_and_back() -> None:
    """What was written before is moved along; what was written since is not."""
    moves = (Move(2000.0, 900.0), Move(2500.0, -300.0))
    assert as_now(moves, 1000.0) == 1600.0
    assert as_now(moves, 2100.0) == 1800.0
    assert as_now(moves, 2600.0) == 2600.0  # shown twice: taken for the second time
    assert as_now(moves, 3000.0) == 3000.0
    assert as_then(moves, 1600.0) == 1000.0
    assert as_then(moves, 2600.0) == 2600.0
    assert as_then((), 5.0) == as_now((), 5.0) == 5.0


@pytest.mark.parametrize(
    ("boot", "up_s", "now_s", "by_s"),
    [
        ("a", 150.0, 1050.0, 0.0),  # as it should be
        ("a", 150.0, 1050.4, 0.0),  # less than is worth it
        ("a", 150.0, 22650.0, 21600.0),
        ("a", 150.0, 450.0, -600.0),
        ("b", 20.0, 1400.0, 400.0),  # booted: no time has passed
        ("b", 20.0, 900.0, -100.0),
        ("a", 20.0, 1400.0, 400.0),  # a machine without an id for its boots
    ],
)
def test_how_far_times_have_moved(boot: str, up_s: float, now_s: float, by_s: float) -> None:
    """The last that is known is 1000, when the machine was up for 100 s of its boot a."""
    assert moved_s((1000.0, "a", 100.0), (now_s, boot, up_s)) == by_s
    assert moved_s(None, (now_s, boot, up_s)) == 0.0


def test_all_that_a_restarted_daemon_remembers_is_moved_together() -> None:
    """Moments that never were stay so, and what was written after the move is right as it is."""
    node = ManagedNode(
        "vn1",
        "10.77.1.1/16",
        "bm1",
        1,
        Phase.FAILED,
        NOW_S - 9,
        NOW_S - 500,
        held=(HeldJob("7", 0, refused=RefusedSuspend("no", NOW_S - 60)), HeldJob("8", 0)),
        retry=Retry(not_before_s=NOW_S + 30),
    )
    fleet = Fleet("f", 2, FleetState.READY, NOW_S - 50, ready_s=NOW_S - 5)
    before = [
        ClockRead(NOW_S - 1, "a", 99.0, began=True),
        NodeManaged(node),
        FleetSet(fleet),
        HoldSet("bm1", NOW_S - 7, True, "a disk"),
    ]
    told = [encode(change) for change in before]
    start = began(told, ClockRead(NOW_S + 21605.0, "a", 105.0))
    assert start == ClockRead(NOW_S + 21605.0, "a", 105.0, began=True, moved_s=21600.0, away_s=6.0)
    found = remembered([*told, encode(start)], start.at_s)
    by_type = {type(change): change for change in found}
    moved = by_type[NodeManaged]
    assert isinstance(moved, NodeManaged)
    assert (moved.node.since_s, moved.node.retry.not_before_s) == (NOW_S + 21591.0, NOW_S + 21630.0)
    assert moved.node.proof.proven_s is None
    assert [h.refused.since_s for h in moved.node.held if h.refused] == [NOW_S + 21540.0]
    assert by_type[HoldSet] == HoldSet("bm1", NOW_S + 21593.0, True, "a disk")
    made = by_type[FleetSet]
    assert isinstance(made, FleetSet)
    assert (made.fleet.ordered_s, made.fleet.ready_s) == (NOW_S + 21550.0, NOW_S + 21595.0)
    assert made.fleet.begun_s is None
    world = World()
    for change in found:
        world.apply(change)
    assert world.time_moves == (Move(start.at_s, 21600.0),)
    again = began([*told, encode(start)], ClockRead(NOW_S + 21700.0, "a", 200.0))
    assert again.moved_s == 0.0


def test_a_journal_of_an_older_version_is_read_as_before() -> None:
    """It says nothing of clocks."""
    assert began([], ClockRead(NOW_S, "a", 5.0)) == ClockRead(NOW_S, "a", 5.0, began=True)


def test_a_checkpoint_is_not_over_because_a_clock_was_set() -> None:
    """Neither while the daemon ran nor after the restart, from which on its time is the clock's."""
    world = World()
    day_s = 86400.0
    for change in (
        ClockRead(NOW_S, "a", 0.0, began=True),
        ClockSet(NOW_S + 100.0, -30 * day_s),
        ClockRead(NOW_S + 30 * day_s + 200.0, "a", 200.0, began=True, moved_s=30 * day_s),
    ):
        world.apply(change)
    assert world.ahead_s == 0.0
    assert world.clock_moves == (Move(NOW_S + 30 * day_s + 100.0, 30 * day_s),)
    kept = Checkpoint("c1", "vn1", created_s=NOW_S, expires_s=NOW_S + 7 * day_s)
    rules, clock_s = Checkpoints(), NOW_S + 30 * day_s + 300.0
    assert rules.expired([kept], clock_s) == ("c1",)
    assert rules.expired([kept], clock_s, world.clock_moves) == ()
    assert rules.expired([kept], clock_s + 7 * day_s, world.clock_moves) == ("c1",)
