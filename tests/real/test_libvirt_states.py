"""A program in a real guest counts on without gap or repetition through everything done to it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from backfill.core.fleet import Instance, InstanceState
from backfill.ports import (
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    UnreachableError,
)
from tests.contract.instance_provider import CLUSTER, spec
from tests.real.libvirt_rig import LibvirtRig, running_lab

pytestmark = pytest.mark.real
NAME = "vn1"
IN_MEMORY = (InstanceState.RUNNING, InstanceState.PAUSED)


@pytest.fixture(scope="module")
def rig() -> Iterator[LibvirtRig]:
    with running_lab("libvirt-states") as lab:
        made = LibvirtRig(lab)
        yield made
        made.end()


class Guest:
    """The one counting guest, wherever it is."""

    def __init__(self, rig: LibvirtRig) -> None:
        self.rig, self.provider = rig, rig.provider

    def seen(self) -> list[Instance]:
        found = [self.provider.read(host, NAME) for host in self.provider.hosts]
        return [instance for instance in found if instance is not None]

    @property
    def host(self) -> str:
        (instance,) = self.seen()
        return instance.host

    @property
    def other(self) -> str:
        (host,) = set(self.provider.hosts) - {self.host}
        return host

    @property
    def state(self) -> InstanceState:
        (instance,) = self.seen()
        return instance.state

    def put(self, state: InstanceState) -> None:
        """Bring it from RUNNING into this state."""
        if state is InstanceState.PAUSED:
            self.provider.pause(self.host, NAME)
        if state is InstanceState.SUSPENDED:
            self.provider.suspend(self.host, NAME)
        assert self.state is state

    def run_on(self) -> None:
        """Bring it back to RUNNING from whatever state, and see the counter go on."""
        if self.state is InstanceState.SUSPENDED:
            self.provider.restore(self.host, NAME)
        if self.state is InstanceState.PAUSED:
            self.provider.thaw(self.host, NAME)
        assert self.state is InstanceState.RUNNING
        self.rig.goes_on(NAME)


@pytest.fixture
def guest(rig: LibvirtRig) -> Guest:
    made = Guest(rig)
    if [instance.state for instance in made.seen()] != [InstanceState.RUNNING]:
        for host in rig.provider.hosts:
            rig.provider.delete(host, NAME)
        rig.provider.create(spec(rig, NAME))
        rig.booted(NAME)
        rig.start_counter(rig.provider.hosts[0], NAME)
    return made


def in_background(work: Callable[[], None]) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return future


def patiently(work: Callable[[], None], limit_s: float = 30.0) -> None:
    """Repeat what is refused for the moment, as the engine does in its cycles."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return work()
        except BusyError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)


# --- without faults ------------------------------------------------------------------------------


def test_pause_stops_the_guest_and_thaw_lets_it_go_on(guest: Guest) -> None:
    """Nothing is counted during a pause; nothing is lost by it."""
    for _ in range(3):
        guest.put(InstanceState.PAUSED)
        pid = guest.rig.qemu_pid(guest.host, NAME)
        before, cpu = guest.rig.counts(NAME), _cpu_ticks(pid)
        time.sleep(0.3)  # the time in which a running guest would have counted
        assert guest.rig.counts(NAME) == before
        assert _cpu_ticks(pid) - cpu <= 1
        guest.run_on()


@pytest.mark.parametrize("before", IN_MEMORY)
def test_suspend_frees_memory_and_restore_brings_it_back(
    guest: Guest, before: InstanceState
) -> None:
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
    time.sleep(1.5)  # what the clock will be behind
    guest.run_on()
    assert 1.3 < guest.provider.wake(guest.host, NAME, time.time()) < 2.5
    assert abs(guest.provider.wake(guest.host, NAME, time.time())) < 0.3


def test_a_pause_does_not_disturb_a_migration(guest: Guest) -> None:
    """It is refused, because the guest would run on at the target; the migration goes on."""
    source, target = guest.host, guest.other
    for _ in range(3):
        moving = in_background(partial(guest.provider.migrate, source, NAME, target))
        guest.rig.until(lambda t=target: guest.provider.read(t, NAME) is not None)  # type: ignore[misc]
        with pytest.raises((BusyError, NotFoundError), match=r"on its way|no such instance"):
            guest.provider.pause(source, NAME)
        moving.result(60)
        assert (guest.host, guest.state) == (target, InstanceState.RUNNING)
        guest.run_on()
        source, target = target, source


# --- with faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("before", IN_MEMORY)
def test_libvirtd_killed_while_suspending(guest: Guest, before: InstanceState) -> None:
    """The guest is afterwards in memory or on disk, never neither; repeating the call succeeds."""
    host = guest.host
    if before is InstanceState.PAUSED:
        guest.put(before)
    image = guest.provider._pool.store.memory(NAME)
    saving = in_background(lambda: guest.provider.suspend(host, NAME))
    guest.rig.until(lambda: image.exists() and image.stat().st_size > 1_000_000)
    guest.rig.kill_libvirtd(host)
    with pytest.raises(UnreachableError):
        saving.result(30)
    guest.rig.revive_libvirtd(host)
    guest.rig.until(lambda: guest.state in (*IN_MEMORY, InstanceState.SUSPENDED))
    if guest.state is not InstanceState.SUSPENDED:
        # An emulator that has sent its memory already cannot send it again before it has run.
        patiently(guest.run_on)
    guest.provider.suspend(host, NAME)
    assert guest.state is InstanceState.SUSPENDED
    guest.run_on()


def test_libvirtd_killed_while_restoring(guest: Guest) -> None:
    """The image is kept until the memory is complete in RAM."""
    host = guest.host
    guest.put(InstanceState.SUSPENDED)
    restoring = in_background(lambda: guest.provider.restore(host, NAME))
    guest.rig.until(lambda: guest.state is not InstanceState.SUSPENDED)
    guest.rig.kill_libvirtd(host)
    with pytest.raises(UnreachableError):
        restoring.result(30)
    guest.rig.revive_libvirtd(host)
    guest.rig.until(lambda: guest.state in (InstanceState.PAUSED, InstanceState.SUSPENDED))
    guest.run_on()


@pytest.mark.parametrize("state", IN_MEMORY)
@pytest.mark.parametrize("victim", ["source libvirtd", "target libvirtd", "target emulator"])
def test_a_migration_that_dies_leaves_one_guest(
    guest: Guest, state: InstanceState, victim: str
) -> None:
    """Whoever dies, the guest is on exactly one host afterwards, and can be moved again."""
    rig, source, target = guest.rig, guest.host, guest.other
    guest.put(state)
    moving = in_background(lambda: guest.provider.migrate(source, NAME, target))
    rig.until(lambda: guest.provider.read(target, NAME) is not None)
    if victim == "target emulator":
        os.kill(rig.qemu_pid(target, NAME), signal.SIGKILL)
    else:
        rig.kill_libvirtd(source if victim.startswith("source") else target)
    failure = moving.exception(60)
    assert failure is None or isinstance(failure, DriverError)
    for host in (source, target):
        if not rig.lab.status().machines[host].services["libvirtd"]:
            rig.revive_libvirtd(host)
    rig.until(lambda: len(guest.seen()) == 1 and guest.state in IN_MEMORY)
    if guest.host == source:
        assert guest.state is state
    guest.run_on()
    guest.provider.migrate(guest.host, NAME, guest.other)
    guest.run_on()


@pytest.mark.parametrize("before", IN_MEMORY)
def test_a_full_disk_during_suspend(guest: Guest, before: InstanceState) -> None:
    """The guest stays as it was and the reason is told."""
    if before is InstanceState.PAUSED:
        guest.put(before)
    with guest.rig.full_disk(guest.host, NAME), pytest.raises(NoCapacityError, match="No space"):
        guest.provider.suspend(guest.host, NAME)
    assert guest.state is before
    guest.provider.suspend(guest.host, NAME)
    guest.run_on()


def test_a_corrupt_image_is_refused_and_kept(guest: Guest) -> None:
    """A memory image that cannot be loaded is an error, and the instance stays suspended."""
    guest.put(InstanceState.SUSPENDED)
    image = guest.provider._pool.store.memory(NAME)
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DriverError):
        guest.provider.restore(guest.host, NAME)
    assert guest.state in (InstanceState.SUSPENDED, InstanceState.CRASHED)
    image.write_bytes(whole)
    guest.run_on()


def test_libvirtd_that_hangs_does_not_hang_us(guest: Guest) -> None:
    """A stopped libvirtd costs its caller the keepalive's time, then it is unreachable."""
    host = guest.host
    guest.rig.lab.kill(f"libvirtd@{host}", signal.SIGSTOP)
    began_s = time.monotonic()
    try:
        with pytest.raises(UnreachableError):
            guest.provider.pause(host, NAME)
        assert not guest.provider.observe(host).host.reachable
        took_s = time.monotonic() - began_s
    finally:
        guest.rig.lab.kill(f"libvirtd@{host}", signal.SIGCONT)
    assert took_s < 20
    guest.rig.until(lambda: guest.provider.observe(host).host.reachable)
    guest.run_on()


def test_libvirtd_killed_again_and_again_while_pausing(guest: Guest) -> None:
    """Pauses and thaws that fail change nothing that a repetition cannot put right."""
    host = guest.host
    for _ in range(3):
        guest.rig.kill_libvirtd(host)
        with pytest.raises(UnreachableError):
            guest.provider.pause(host, NAME)
        guest.rig.revive_libvirtd(host)
        guest.put(InstanceState.PAUSED)
        guest.run_on()


def test_a_thaw_is_refused_while_another_host_may_have_it(guest: Guest) -> None:
    """A host that took part in a broken migration must answer before the guest runs again."""
    source, target = guest.host, guest.other
    guest.put(InstanceState.PAUSED)
    guest.provider._pool.store.claim(NAME, {source, target})
    with guest.rig.unreachable(target):
        with pytest.raises(UnreachableError, match="may still be on"):
            guest.provider.thaw(source, NAME)
        assert guest.provider.read(source, NAME) is not None
    guest.rig.until(lambda: guest.provider.observe(target).host.reachable)
    guest.run_on()


def test_creations_and_deletions_survive_the_death_of_libvirtd(rig: LibvirtRig) -> None:
    """Whenever it dies, repeating the call ends in one running instance, or in none."""
    host = rig.provider.hosts[0]
    wanted = spec(rig, "vn7")
    home = Path(rig.config.directory, CLUSTER, "vn7")
    for delay_s in (0.0, 0.05, 0.1, 0.15, 0.2, 0.3):
        making = in_background(lambda: rig.provider.create(wanted))
        rig.until((home / "disk.qcow2").exists)
        time.sleep(delay_s)  # the moment of death is what is varied
        rig.kill_libvirtd(host)
        assert isinstance(making.exception(60), UnreachableError | None)
        rig.revive_libvirtd(host)
        rig.provider.create(wanted)
        made = rig.provider.read(host, "vn7")
        assert made is not None
        assert made.state is InstanceState.RUNNING
        ending = in_background(lambda: rig.provider.delete(host, "vn7"))
        time.sleep(delay_s / 4)
        rig.kill_libvirtd(host)
        assert isinstance(ending.exception(60), UnreachableError | None)
        rig.revive_libvirtd(host)
        rig.provider.delete(host, "vn7")
        assert rig.provider.read(host, "vn7") is None
        assert not home.exists()
        assert rig.emulators(host, "vn7") == []


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
