"""Whatever dies under a real guest, its program counts on without gap, on one host."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.fleet import InstanceState
from backfill.ports import BusyError, DriverError, NoCapacityError, UnreachableError
from tests.contract.instance_rig import CLUSTER, spec
from tests.real.libvirt_guest import (
    IN_MEMORY,
    NAME,
    Guest,
    counting_guest,
    in_background,
    patiently,
    strike_a_move,
)
from tests.real.libvirt_rig import PATIENCE_S, LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real
_NO_EMULATOR_YET = (
    "<domstatus state='paused' reason='starting up' pid='0'>"
    "<job type='none' async='start' flags='0x0' asyncStarted='1'/>"
)


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-faults", request.param) as lab:
        made = LibvirtRig(lab)
        yield made
        made.end()


@pytest.fixture
def guest(rig: LibvirtRig) -> Guest:
    return counting_guest(rig)


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
    # On a fast machine the image may be complete before the blow falls; then nothing may be lost.
    assert isinstance(saving.exception(PATIENCE_S), UnreachableError | None)
    guest.rig.revive_libvirtd(host)
    guest.rig.until(lambda: guest.state in (*IN_MEMORY, InstanceState.SUSPENDED))
    if guest.state is not InstanceState.SUSPENDED:
        # An emulator that has sent its memory already cannot send it again before it has run.
        patiently(guest.run_on)
    guest.provider.suspend(host, NAME)
    assert guest.state is InstanceState.SUSPENDED
    guest.run_on()


def test_libvirtd_killed_while_restoring(guest: Guest) -> None:
    """The image is kept until the memory is complete in RAM, whenever the blow falls."""
    host = guest.host
    for delay_s in (0.0, 0.05, 0.2):
        guest.put(InstanceState.SUSPENDED)
        restoring = in_background(lambda: guest.provider.restore(host, NAME))
        guest.rig.until(lambda: guest.state is not InstanceState.SUSPENDED)
        time.sleep(delay_s)  # the moment of death is what is varied
        guest.rig.kill_libvirtd(host)
        assert isinstance(restoring.exception(PATIENCE_S), UnreachableError | None)
        guest.rig.revive_libvirtd(host)
        guest.rig.until(lambda: guest.state in (InstanceState.PAUSED, InstanceState.SUSPENDED))
        guest.run_on()


@pytest.mark.parametrize("state", IN_MEMORY)
@pytest.mark.parametrize("victim", ["source libvirtd", "target libvirtd", "target emulator"])
def test_a_migration_that_dies_leaves_one_guest(
    guest: Guest, state: InstanceState, victim: str
) -> None:
    """Whoever dies, the guest is on exactly one host afterwards, and can be moved again."""
    source = guest.host
    guest.put(state)
    strike_a_move(guest, victim)
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
    try:
        pausing = in_background(lambda: guest.provider.pause(host, NAME))
        assert isinstance(pausing.exception(PATIENCE_S), UnreachableError)
        assert not guest.provider.observe(host).host.reachable
    finally:
        guest.rig.lab.kill(f"libvirtd@{host}", signal.SIGCONT)
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


@pytest.mark.soak
def test_a_start_that_libvirtd_never_lets_go_of_counts_as_ended(rig: LibvirtRig) -> None:
    """It died before it had an emulator: the remedy is told, and works; the host is free before.

    libvirtd's note is written here as it leaves it in one of some ten deaths at that moment.
    """
    host = rig.provider.hosts[0]
    rig.provider.create(spec(rig, "vn8"))
    pid, note = rig.qemu_pid(host, "vn8"), "/run/libvirt/qemu/vn8.xml"
    rig.kill_libvirtd(host)
    os.kill(pid, signal.SIGKILL)
    rig.lab.run(host, ["sed", "-i", f"s#^<domstatus .*#{_NO_EMULATOR_YET}#", note], check=True)
    rig.revive_libvirtd(host)
    assert (seen := rig.provider.read(host, "vn8"))
    assert seen.state is InstanceState.BUILDING
    with pytest.raises(BusyError, match=f"nothing of it runs.*{note}"):
        rig.provider.delete(host, "vn8")
    assert (seen := rig.provider.read(host, "vn8"))
    assert seen.state is InstanceState.CRASHED
    rig.kill_libvirtd(host)
    rig.lab.run(host, ["rm", note], check=True)
    rig.revive_libvirtd(host)
    rig.provider.delete(host, "vn8")
    assert rig.provider.read(host, "vn8") is None
    assert not Path(rig.config.directory, CLUSTER, "vn8").exists()


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
        assert isinstance(making.exception(PATIENCE_S), UnreachableError | None)
        rig.revive_libvirtd(host)
        rig.provider.create(wanted)
        made = rig.provider.read(host, "vn7")
        assert made is not None
        assert made.state is InstanceState.RUNNING
        ending = in_background(lambda: rig.provider.delete(host, "vn7"))
        time.sleep(delay_s / 4)
        rig.kill_libvirtd(host)
        assert isinstance(ending.exception(PATIENCE_S), UnreachableError | None)
        rig.revive_libvirtd(host)
        rig.provider.delete(host, "vn7")
        assert rig.provider.read(host, "vn7") is None
        assert not home.exists()
        assert rig.emulators(host, "vn7") == []
