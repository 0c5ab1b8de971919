"""Whatever dies under a real guest, its program counts on without gap, on one host."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill.core.model.fleet import Instance, InstanceState
from backfill.ports.errors import (
    BusyError,
    DriverError,
    NoCapacityError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)
from tests.contract.hiding import as_nobody
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
from tests.real.struck_saves import strike_when_all_is_sent

pytestmark = [pytest.mark.real, pytest.mark.gate]
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


@pytest.mark.parametrize("after", ["suspend", "migrate", "thaw"])
def test_libvirtd_killed_when_all_was_written(guest: Guest, after: str) -> None:
    """QEMU does not send its memory twice: what it wrote is used, and nothing is lost."""
    host, other = guest.host, guest.other
    guest.put(InstanceState.PAUSED)
    last = guest.rig.last_counts(NAME)[-1]
    home = guest.provider._pool.store.home(NAME)
    saving = in_background(lambda: guest.provider.suspend(host, NAME))
    strike_when_all_is_sent(guest.rig.lab, host, home)
    assert isinstance(saving.exception(PATIENCE_S), UnreachableError)
    guest.rig.revive_libvirtd(host)
    assert guest.state is InstanceState.PAUSED
    if after == "suspend":
        guest.provider.suspend(host, NAME)
        assert (guest.host, guest.state) == (host, InstanceState.SUSPENDED)
    elif after == "migrate":
        guest.provider.migrate(host, NAME, other)
        assert (guest.host, guest.state) == (other, InstanceState.SUSPENDED)
    if after != "thaw":
        assert guest.rig.emulators(host, NAME) == []
    assert guest.rig.counts(NAME)[-1] == last
    guest.run_on()
    guest.provider.suspend(guest.host, NAME)
    guest.run_on()


def test_what_was_sent_and_lost_is_told(guest: Guest) -> None:
    """Then it cannot be saved before it has run; it stands still, whole, until its host is free."""
    host = guest.host
    guest.put(InstanceState.PAUSED)
    store = guest.provider._pool.store
    saving = in_background(lambda: guest.provider.suspend(host, NAME))
    strike_when_all_is_sent(guest.rig.lab, host, store.home(NAME))
    assert isinstance(saving.exception(PATIENCE_S), UnreachableError)
    guest.rig.revive_libvirtd(host)
    store.discard_memory(NAME)
    for call in (
        lambda: guest.provider.suspend(host, NAME),
        lambda: guest.provider.migrate(host, NAME, guest.other),
    ):
        with pytest.raises(RefusedError, match="what was sent is lost"):
            call()
    assert (guest.host, guest.state) == (host, InstanceState.PAUSED)
    guest.run_on()
    guest.provider.suspend(host, NAME)
    guest.run_on()


def fresh(rig: LibvirtRig, name: str) -> None:
    """A guest of the test's own that has booted; what one that failed has left goes first."""
    rig.revive_all()
    rig.provider.delete(rig.provider.hosts[0], name)
    rig.provider.create(spec(rig, name))
    rig.booted(name)


def test_a_guest_that_powers_off_without_libvirtd_is_seen_to_be_off(rig: LibvirtRig) -> None:
    """QEMU stays in the state `shutdown` until libvirtd is back, which then ends it."""
    host = rig.provider.hosts[0]
    fresh(rig, "vn9")
    rig.in_guest(host, "vn9", "(sleep 3; echo o >/proc/sysrq-trigger) >/dev/null 2>&1 </dev/null &")
    rig.kill_libvirtd(host)
    rig.until(lambda: "Power down" in rig.console_text("vn9"))
    rig.revive_libvirtd(host)

    def state() -> InstanceState | None:
        seen = rig.provider.read(host, "vn9")
        return None if seen is None else seen.state

    rig.until(lambda: state() is InstanceState.OFF)
    assert rig.emulators(host, "vn9") == []
    rig.provider.delete(host, "vn9")


_DEPTHS = "cat /sys/power/mem_sleep"  # "deep" is the one in which QEMU stands still
_SLEEP = "(sleep 1; echo mem >/sys/power/state) >/dev/null 2>&1 </dev/null &"


def test_a_guest_cannot_send_itself_to_sleep(guest: Guest) -> None:
    """Asleep it looks paused, cannot be paused or thawed, and is woken by any alarm."""
    assert "s2idle" in (depths := guest.rig.in_guest(guest.host, NAME, _DEPTHS))
    assert "deep" not in depths


@pytest.mark.parametrize("order", ["pause", "thaw"])
def test_a_guest_that_sleeps_is_woken_to_be_paused_or_thawed(rig: LibvirtRig, order: str) -> None:
    """One of an older version of ours could do that."""
    host = rig.provider.hosts[0]
    fresh(rig, "vn6")
    hypervisor = rig.provider._pool.on(host)
    document = hypervisor.document("vn6")
    assert "<suspend-to-mem enabled='no'/>" in document
    hypervisor.destroy("vn6")
    hypervisor.define("vn6", document.replace("enabled='no'", "enabled='yes'"))
    hypervisor.start("vn6")

    def told() -> str:
        argv = ["virsh", "domstate", "vn6", "--reason"]
        return rig.lab.run(host, argv, check=True).stdout.strip()

    assert "deep" in rig.in_guest(host, "vn6", _DEPTHS)
    rig.in_guest(host, "vn6", _SLEEP)
    rig.until(lambda: told().startswith("pmsuspended"))
    if order == "pause":
        patiently(lambda: rig.provider.pause(host, "vn6"))
        assert told() == "paused (user)"
        rig.provider.thaw(host, "vn6")
    else:
        rig.provider.thaw(host, "vn6")
    rig.until(lambda: told().startswith("running"))
    assert "deep" in rig.in_guest(host, "vn6", _DEPTHS)  # it answers
    rig.provider.delete(host, "vn6")


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
def test_a_migration_that_dies_leaves_one_guest(guest: Guest, state: InstanceState, victim: str) -> None:
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


@contextmanager
def small_directory(rig: LibvirtRig, host: str) -> Iterator[Path]:
    """A directory of 64 MB that this process and the host have in common."""
    place, disk = rig.lab.shared / "small", rig.lab.shared / "small.img"
    place.mkdir()
    with disk.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", disk], check=True)
    shown = subprocess.run(["losetup", "--find", "--show", disk], check=True, capture_output=True, text=True)
    device = shown.stdout.strip()
    try:
        subprocess.run(["mount", device, place], check=True)
        rig.lab.run(host, ["mount", device, str(place)], check=True)
        yield place
    finally:
        rig.lab.run(host, ["umount", str(place)])
        subprocess.run(["umount", place], check=True)
        subprocess.run(["losetup", "--detach", device], check=True)


def test_a_disk_that_is_full_stops_the_guest_and_it_goes_on_when_there_is_room(rig: LibvirtRig) -> None:
    """QEMU stops it before it hears of an error; that is told, and a thaw is enough afterwards."""
    host = rig.provider.hosts[0]
    with small_directory(rig, host) as place:
        small = LibvirtRig(rig.lab, directory=str(place))
        small.provider.create(spec(small, "vn5"))
        small.booted("vn5")
        filler = place / "filler"
        room = shutil.disk_usage(place).free - (2 << 20)
        filler.write_bytes(os.urandom(room))
        small.in_guest(
            host,
            "vn5",
            "(dd if=/dev/urandom of=/fill bs=1M count=16 conv=fsync && touch /filled)"
            " >/dev/null 2>&1 </dev/null &",
        )

        def seen() -> Instance:
            found = small.provider.observe(host).instances["vn5"]
            assert found.state in IN_MEMORY
            return found

        small.until(lambda: seen().state is InstanceState.PAUSED)
        assert "could not write to its disk" in seen().problem
        small.provider.thaw(host, "vn5")  # in vain
        small.until(lambda: seen().state is InstanceState.PAUSED)
        filler.unlink()
        small.provider.thaw(host, "vn5")
        small.until(lambda: "filled" in small.in_guest(host, "vn5", "ls /"))
        assert (seen().state, seen().problem) == (InstanceState.RUNNING, "")
        small.provider.delete(host, "vn5")
        small.provider.close()


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


def test_what_only_root_may_read_is_asked_of_libvirtd(guest: Guest) -> None:
    """As a daemon of the user slurm: a saved guest is seen as saved, and half an image as none."""
    host = guest.host
    guest.put(InstanceState.SUSPENDED)
    image = guest.provider._pool.store.memory(NAME)
    image.chmod(0o600)

    def seen() -> set[InstanceState]:
        return {guest.state, guest.provider.observe(host).instances[NAME].state}

    with as_nobody():
        assert seen() == {InstanceState.SUSPENDED}
    with image.open("r+b") as file:
        file.write(b"LibvirtQemudPart")
    with as_nobody():
        assert seen() == {InstanceState.OFF}
    with image.open("r+b") as file:
        file.write(b"SomethingElse...")
    with as_nobody():
        (unknown,) = guest.seen()
        assert unknown.state is InstanceState.UNKNOWN
        assert f"{image}: Permission denied" in unknown.problem
        with pytest.raises(UnreadableError, match="Permission denied"):
            guest.provider.restore(host, NAME)
    with image.open("r+b") as file:
        file.write(b"LibvirtQemudSave")
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
        _with_the_remedy(rig, lambda: rig.provider.create(wanted))
        made = rig.provider.read(host, "vn7")
        assert made is not None
        assert made.state is InstanceState.RUNNING
        ending = in_background(lambda: rig.provider.delete(host, "vn7"))
        time.sleep(delay_s / 4)
        rig.kill_libvirtd(host)
        assert isinstance(ending.exception(PATIENCE_S), UnreachableError | None)
        rig.revive_libvirtd(host)
        _with_the_remedy(rig, lambda: rig.provider.delete(host, "vn7"))
        assert rig.provider.read(host, "vn7") is None
        assert not home.exists()
        assert rig.emulators(host, "vn7") == []


def _with_the_remedy(rig: LibvirtRig, call: Callable[[], None]) -> None:
    """One of some ten deaths leaves what libvirtd cannot let go of; then we do what is told."""
    host = rig.provider.hosts[0]
    try:
        call()
    except BusyError as error:
        told = str(error)
    else:
        return
    found = re.search(r"nothing of it runs.* remove (\S+) and start libvirtd", told)
    assert found, told
    rig.kill_libvirtd(host)
    rig.lab.run(host, ["rm", found[1]], check=True)
    rig.revive_libvirtd(host)
    call()
