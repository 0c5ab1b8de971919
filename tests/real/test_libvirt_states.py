"""A program in a real guest counts on without gap or repetition through everything done to it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.ports.errors import BusyError, DriverError, NotFoundError
from tests.real.libvirt_guest import IN_MEMORY, NAME, Guest, counting_guest, in_background
from tests.real.libvirt_rig import PATIENCE_S, LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-states", request.param) as lab:
        made = LibvirtRig(lab)
        yield made
        made.end()


@pytest.fixture
def guest(rig: LibvirtRig) -> Guest:
    return counting_guest(rig)


def test_pause_stops_the_guest_and_thaw_lets_it_go_on(guest: Guest) -> None:
    """Nothing is counted during a pause; nothing is lost by it."""
    for _ in range(3):
        guest.put(InstanceState.PAUSED)
        pid = guest.rig.qemu_pid(guest.host, NAME)
        before, cpu = guest.rig.last_counts(NAME), _cpu_ticks(pid)
        assert guest.rig.last_counts(NAME) == before
        assert _cpu_ticks(pid) - cpu <= 5
        guest.run_on()


@pytest.mark.parametrize("before", IN_MEMORY)
def test_suspend_frees_memory_and_restore_brings_it_back(guest: Guest, before: InstanceState) -> None:
    """The emulator is gone while suspended; the guest comes back paused and goes on."""
    if before is InstanceState.PAUSED:
        guest.put(before)
    pid = guest.rig.qemu_pid(guest.host, NAME)
    guest.put(InstanceState.SUSPENDED)
    assert not Path(f"/proc/{pid}").exists()
    guest.run_on()


@pytest.mark.parametrize("state", [*IN_MEMORY, InstanceState.SUSPENDED])
def test_a_guest_moves_in_every_state(guest: Guest, state: InstanceState) -> None:
    """There and back again; it is on one host at a time and keeps its state on the way."""
    for _ in range(2):
        source, target = guest.host, guest.other
        guest.put(state)
        guest.provider.migrate(source, NAME, target)
        assert (guest.host, guest.state) == (target, state)
        guest.run_on()


def test_a_suspended_guest_survives_a_restart_of_libvirtd(guest: Guest) -> None:
    """What is on disk does not depend on the daemon that wrote it."""
    guest.put(InstanceState.SUSPENDED)
    for host in guest.provider.hosts:
        guest.rig.lab.restart(f"libvirtd@{host}")
    guest.rig.until(lambda: guest.provider.observe(guest.provider.hosts[0]).host.reachable)
    guest.rig.until(lambda: guest.provider.observe(guest.provider.hosts[1]).host.reachable)
    assert guest.state is InstanceState.SUSPENDED
    guest.run_on()


@pytest.mark.parametrize("state", IN_MEMORY)
def test_the_emulator_itself_refuses_a_second_start(guest: Guest, state: InstanceState) -> None:
    """Even without our own checks two hosts cannot have the disk at the same time."""
    guest.put(state)
    twin = guest.provider._pool.hypervisors[guest.other]
    document = guest.provider._pool.hypervisors[guest.host].document(NAME)
    twin.define(NAME, document)
    with pytest.raises(DriverError, match="lock"):
        twin.start(NAME)
    twin.undefine(NAME)
    guest.run_on()


def test_waking_after_a_pause_corrects_the_clock(guest: Guest) -> None:
    """The guest's clock stands during a pause; waking moves it by what was missed."""
    guest.provider.wake(guest.host, NAME, time.time())
    guest.put(InstanceState.PAUSED)
    # So long that it is told from what an emulated guest gains or loses by itself: one that was
    # starved as it booted has a wrong measure of its processor's cycles.
    time.sleep(12.0)
    guest.run_on()
    began_s = time.time()
    missed_s = guest.provider.wake(guest.host, NAME, began_s)
    assert missed_s > 4.0
    left_s = guest.provider.wake(guest.host, NAME, time.time())
    # The time that is set is the one when it was asked for: a busy guest is late by its two answers.
    assert abs(left_s) < 4.0 + (time.time() - began_s)


def test_a_pause_does_not_disturb_a_migration(guest: Guest) -> None:
    """It is refused, because the guest would run on at the target; the migration goes on."""
    source, target = guest.host, guest.other
    for _ in range(3):
        moving = in_background(partial(guest.provider.migrate, source, NAME, target))
        guest.rig.until(lambda t=target: guest.provider.read(t, NAME) is not None)  # type: ignore[misc]
        with pytest.raises((BusyError, NotFoundError), match=r"on its way|no such instance"):
            guest.provider.pause(source, NAME)
        moving.result(PATIENCE_S)
        assert (guest.host, guest.state) == (target, InstanceState.RUNNING)
        guest.run_on()
        source, target = target, source


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
