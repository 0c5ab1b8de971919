"""A guest's life on a later libvirt and QEMU than Debian 12's, beside a host that has those."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.drivers.libvirt.checkpoints.save_image import read_head
from backfill.ports.errors import DriverError, NoCapacityError
from tests.contract.instance_rig import spec
from tests.real.libvirt_guest import IN_MEMORY, NAME, Guest
from tests.real.libvirt_rig import LibvirtRig, running_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]
OLDER, NEWER = "bm1", "bm2"
FORMAT, RAW = 3, 0  # a word of the image's head, and libvirt's first format


@pytest.fixture(scope="module")
def rig() -> Iterator[LibvirtRig]:
    with running_lab("libvirt-newer", "debian-12,debian-13") as lab:
        with (lab.dir / "machines" / NEWER / "libvirt-etc/qemu.conf").open("a") as conf:
            conf.write('save_image_format = "sparse"\n')  # it has lost memory: we ask for another
        lab.restart(f"libvirtd@{NEWER}")
        made = LibvirtRig(lab)
        yield made
        made.end()


@pytest.fixture(scope="module")
def guest(rig: LibvirtRig) -> Guest:
    """It counts; born on the later one, whose board the older one does not know."""
    rig.provider.create(spec(rig, NAME, host=NEWER))
    rig.booted(NAME)
    rig.start_counter(NEWER, NAME)
    return Guest(rig)


@pytest.mark.parametrize("before", IN_MEMORY)
def test_it_goes_to_disk_and_comes_back(guest: Guest, before: InstanceState) -> None:
    """Whether it ran or stood still; on a full disk it stays as it was."""
    if before is InstanceState.PAUSED:
        guest.put(before)
    with guest.rig.full_disk(NEWER, NAME), pytest.raises(NoCapacityError, match="No space"):
        guest.provider.suspend(NEWER, NAME)
    assert guest.state is before
    guest.provider.suspend(NEWER, NAME)
    image = guest.provider._pool.store.memory(NAME)
    assert read_head(image).words[FORMAT] == RAW
    guest.run_on()


def test_its_checkpoint_is_tried_and_put_back(rig: LibvirtRig) -> None:
    """Under another name first; then it goes on from there, and what it did since is undone."""
    name, provider = "vn2", rig.provider
    provider.create(spec(rig, name, host=NEWER))
    rig.booted(name)
    rig.start_counter(NEWER, name)
    provider.suspend(NEWER, name)
    at = rig.last_counts(name)[-1]
    wanted = Checkpoint("7-1", name, generation=1, host=NEWER, members=(name,))
    provider.keep(NEWER, wanted, None)
    provider.rehearse(NEWER, "7-1")
    provider.restore(NEWER, name)
    provider.thaw(NEWER, name)
    rig.until(lambda: rig.counts(name)[-1] >= at + 5)
    provider.suspend(NEWER, name)
    before = len(rig.last_counts(name))
    provider.put_back(NEWER, name, "7-1")
    provider.restore(NEWER, name)
    provider.thaw(NEWER, name)
    rig.until(lambda: len(rig.counts(name)) >= before + 3)
    assert rig.counts(name)[before : before + 3] == [at + 1, at + 2, at + 3]
    provider.drop("7-1")
    provider.delete(NEWER, name)


@pytest.mark.parametrize("state", [*IN_MEMORY, InstanceState.SUSPENDED])
def test_it_is_not_sent_where_its_board_is_unknown(guest: Guest, state: InstanceState) -> None:
    """The older host refuses it with the reason, and it goes on where it is."""
    if state is not InstanceState.RUNNING:
        guest.put(state)
    with pytest.raises(DriverError, match=r"machine type|watchdog"):
        guest.provider.migrate(NEWER, NAME, OLDER)
    assert guest.host == NEWER
    guest.run_on()
