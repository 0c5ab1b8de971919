"""Moves between hosts: one at a time between two of them, and ended only while that is safe."""

from __future__ import annotations

import threading

import pytest

from backfill.drivers.libvirt.migration.transfer import MoveProgress, MoveStep, decide
from backfill.drivers.libvirt.pool import MoveSlots
from backfill.drivers.libvirt.settings import Hardware, LibvirtConfig, MoveTerms, Surroundings
from backfill.ports.errors import BusyError

NOTHING: frozenset[MoveStep] = frozenset()
EARLY, LATE_IN_A_PASS, ALMOST_OVER = MoveProgress(0, 0, 0), MoveProgress(200, 50, 3), MoveProgress(5, 50, 3)
ON_BOTH = MoveProgress(100, 50, 2, post_copy=True)


@pytest.mark.parametrize(
    ("elapsed_s", "seen", "step"),
    [
        (1.0, LATE_IN_A_PASS, MoveStep.WAIT),
        (10.0, LATE_IN_A_PASS, MoveStep.CANCEL),
        (10.0, EARLY, MoveStep.CANCEL),
        (10.0, ALMOST_OVER, MoveStep.WAIT),  # it is about to switch over: an order would come too late
        (10.0, ON_BOTH, MoveStep.WAIT),
    ],
)
def test_a_slow_move_is_cancelled_while_that_is_safe(
    elapsed_s: float, seen: MoveProgress, step: MoveStep
) -> None:
    """Only when an order to stop arrives well before the guest changes sides."""
    assert decide(MoveTerms(within_s=10.0), elapsed_s, seen, NOTHING) is step


@pytest.mark.parametrize(
    ("domain_type", "asked", "live"),
    [("kvm", None, True), ("qemu", None, False), ("qemu", True, True), ("kvm", False, False)],
)
def test_an_emulated_guest_does_not_run_while_its_memory_is_sent(
    domain_type: str, asked: bool | None, live: bool
) -> None:
    """Unless the policy file says so: QEMU then loses what is written in the wrong moment."""
    config = LibvirtConfig(
        "c",
        {},
        "/shared",
        "br0",
        Surroundings("10.0.0.1", "10.0.0.1:6817", "/key"),
        {},
        hardware=Hardware(domain_type=domain_type),
        moves=MoveTerms(live=asked),
    )
    assert config.moves_live is live


def test_post_copy_is_ordered_once_and_only_where_the_policy_says_so() -> None:
    """After a first pass over the memory; a move in post-copy is never cancelled."""
    terms = MoveTerms(within_s=10.0, post_copy_after_s=5.0)
    assert decide(terms, 6.0, EARLY, NOTHING) is MoveStep.WAIT
    assert decide(terms, 6.0, LATE_IN_A_PASS, NOTHING) is MoveStep.POST_COPY
    assert decide(terms, 6.0, LATE_IN_A_PASS, frozenset({MoveStep.POST_COPY})) is MoveStep.WAIT
    assert decide(terms, 11.0, ON_BOTH, frozenset({MoveStep.POST_COPY})) is MoveStep.WAIT
    assert decide(MoveTerms(), 200.0, LATE_IN_A_PASS, NOTHING) is MoveStep.WAIT


def test_moves_between_two_hosts_take_turns_in_both_directions() -> None:
    """The second waits until the first is over; between other hosts nobody waits."""
    slots, entered, done = MoveSlots(), threading.Event(), []

    def second() -> None:
        entered.set()
        with slots.between("vn2", "hv2", "hv1", 10.0):
            done.append("second")

    with slots.between("vn1", "hv1", "hv2", 0.0):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert entered.wait(60)
        with slots.between("vn3", "hv1", "hv3", 0.0):
            done.append("elsewhere")
        done.append("first")
    waiting.join(60)
    assert done == ["elsewhere", "first", "second"]


def test_who_waits_too_long_for_a_slot_is_told_to_come_back() -> None:
    """BusyError is tried again by the engine."""
    slots = MoveSlots()
    with (
        slots.between("vn1", "hv1", "hv2", 0.0),
        pytest.raises(BusyError, match="moving between"),
        slots.between("vn2", "hv1", "hv2", 0.01),
    ):
        pass
