"""A real guest on its way to another host: slowed, called back, timed out, cut off, hurried."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.ports.errors import BusyError, DriverError
from tests.contract.instance_rig import spec
from tests.real.libvirt_guest import NAME, Guest, counting_guest, in_background, patiently
from tests.real.libvirt_rig import PATIENCE_S, LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]

SLOW_MB_S = 8


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-moves", request.param) as lab:
        made = LibvirtRig(lab)
        yield made
        made.end()


@contextmanager
def moving_by(rig: LibvirtRig, live: bool = True, **terms: float) -> Iterator[Guest]:
    """The counting guest, under a driver with these terms for its moves."""
    counting_guest(rig)
    changed = LibvirtRig(rig.lab, moves=MoveTerms(live=live, **terms))  # type: ignore[arg-type]
    try:
        yield Guest(changed)
    finally:
        changed.provider.close()


def test_a_move_is_called_back(rig: LibvirtRig) -> None:
    """The guest goes on where it was, a pause is possible at once, and it can move later."""
    with moving_by(rig, bandwidth_mb_s=SLOW_MB_S) as guest:
        source, target = guest.host, guest.other
        move = in_background(lambda: guest.provider.migrate(source, NAME, target))
        rig.until(lambda: under_way(guest, source))
        guest.provider.cancel_move(source, NAME)
        assert isinstance(move.exception(PATIENCE_S), BusyError)
        assert (guest.host, guest.state) == (source, InstanceState.RUNNING)
        guest.put(InstanceState.PAUSED)
        guest.run_on()
    guest = counting_guest(rig)
    guest.provider.migrate(source, NAME, target)
    guest.run_on()


@pytest.mark.parametrize("state", [InstanceState.RUNNING, InstanceState.PAUSED])
def test_who_looks_meanwhile_sees_it_arriving(rig: LibvirtRig, state: InstanceState) -> None:
    """By that a daemon whose journal tells nothing of the move knows of it."""
    with moving_by(rig, bandwidth_mb_s=SLOW_MB_S) as guest:
        source, target = guest.host, guest.other
        guest.put(state)
        move = in_background(lambda: guest.provider.migrate(source, NAME, target))
        rig.until(lambda: under_way(guest, source))
        seen = guest.provider.observe(target).instances[NAME]
        assert (seen.state, seen.host) == (InstanceState.MIGRATING, target)
        assert guest.provider.read(target, NAME) == seen
        there = guest.provider.observe(source).instances[NAME]
        assert (there.state, there.tag) == (state, seen.tag)
        guest.provider.cancel_move(source, NAME)
        assert isinstance(move.exception(PATIENCE_S), BusyError)
        assert NAME not in guest.provider.observe(target).instances
        assert (guest.host, guest.state) == (source, state)


def test_a_move_that_takes_too_long_is_given_up(rig: LibvirtRig) -> None:
    """The reason is told and the guest has not noticed."""
    with moving_by(rig, bandwidth_mb_s=SLOW_MB_S, within_s=1.0) as guest:
        source = guest.host
        with pytest.raises(BusyError, match="longer than 1 s"):
            guest.provider.migrate(source, NAME, guest.other)
        assert guest.host == source
        guest.run_on()


def test_a_guest_that_is_not_to_move_live_stands_still_on_its_way(rig: LibvirtRig) -> None:
    """Called back it stays so, as somebody wants its room; once it has arrived it runs again."""
    with moving_by(rig, live=False, bandwidth_mb_s=SLOW_MB_S) as guest:
        source, target = guest.host, guest.other
        move = in_background(lambda: guest.provider.migrate(source, NAME, target))
        rig.until(lambda: under_way(guest, source))
        seen = guest.provider.read(source, NAME)
        assert seen is not None
        assert seen.state is InstanceState.PAUSED
        guest.provider.cancel_move(source, NAME)
        assert isinstance(move.exception(PATIENCE_S), BusyError)
        assert (guest.host, guest.state) == (source, InstanceState.PAUSED)
        guest.run_on()
    with moving_by(rig, live=False) as guest:
        guest.provider.migrate(source, NAME, target)
        assert (guest.host, guest.state) == (target, InstanceState.RUNNING)
        guest.run_on()


@contextmanager
def fetching_allowed() -> Iterator[None]:
    """Let QEMU without root fetch memory on demand, as a site's sysctl.conf says."""
    setting = Path("/proc/sys/vm/unprivileged_userfaultfd")
    before = setting.read_text()
    setting.write_text("1")
    try:
        yield
    finally:
        setting.write_text(before)


def test_a_hurried_move_goes_on_at_the_target_at_once(rig: LibvirtRig) -> None:
    """Post-copy: what would take longer than it may ends, and nothing is lost."""
    terms = {"bandwidth_mb_s": 1, "post_copy_after_s": 0.5, "within_s": 70.0}
    with fetching_allowed(), moving_by(rig, live=True, **terms) as guest:
        target = guest.other
        guest.provider.migrate(guest.host, NAME, target)
        assert (guest.host, guest.state) == (target, InstanceState.RUNNING)
        guest.run_on()


def test_a_cut_network_leaves_the_guest_where_it_was(rig: LibvirtRig) -> None:
    """The hosts lose each other in the middle: the source goes on, the target has nothing."""
    with moving_by(rig, bandwidth_mb_s=SLOW_MB_S) as guest:
        source, target = guest.host, guest.other
        move = in_background(lambda: guest.provider.migrate(source, NAME, target))
        rig.until(lambda: under_way(guest, source))
        rig.lab.run(target, ["ip", "link", "set", "eth0", "down"], check=True)
        try:
            assert isinstance(move.exception(PATIENCE_S), DriverError)
            rig.until(lambda: guest.provider.read(source, NAME) is not None)
            rig.until(lambda: len(rig.counts(NAME)) > 3)
        finally:
            rig.lab.run(target, ["ip", "link", "set", "eth0", "up"], check=True)
        rig.until(lambda: guest.provider.observe(target).host.reachable)
        rig.until(lambda: guest.provider.read(target, NAME) is None)
        assert (guest.host, guest.state) == (source, InstanceState.RUNNING)
        guest.run_on()


def test_two_paused_guests_that_leave_at_once_both_arrive(rig: LibvirtRig) -> None:
    """They take turns between the two hosts, and neither libvirtd loses the other."""
    guest = counting_guest(rig)
    source, target = guest.host, guest.other
    rig.provider.create(spec(rig, "vn2", host=source))
    rig.booted("vn2")
    for name in (NAME, "vn2"):
        rig.provider.pause(source, name)
    moves = [
        in_background(lambda n=name: patiently(lambda: rig.provider.migrate(source, n, target)))  # type: ignore[misc]
        for name in (NAME, "vn2")
    ]
    assert [move.exception(PATIENCE_S) for move in moves] == [None, None]
    assert rig.provider.observe(source).instances == {}
    rig.provider.delete(target, "vn2")
    guest.run_on()


def under_way(guest: Guest, source: str) -> bool:
    """Whether the guest's memory is being sent."""
    seen = guest.provider._pool.on(source).progress(NAME)
    return seen is not None and seen.left_mb > 0
