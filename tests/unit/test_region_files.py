"""The files behind shared memory: for QEMU's user alone, whoever was there before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import libvirt
import pytest

from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.connection.shared_memory import is_mapped, make_private
from backfill.drivers.libvirt.devices.book import DeviceBook
from backfill.drivers.libvirt.devices.plugging import sweep
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import RefusedError

NAME, QEMU = "backfill-c1-7-bm1", (64055, 106)
_RIGHTS = "<permissions><mode>{}</mode><owner>{}</owner><group>0</group></permissions>"
_FILE = "<volume><name>{}</name><capacity>0</capacity><target>{}</target></volume>"


_POOL = "<pool type='dir'><name>regions</name><target><path>/regions</path></target></pool>"


@pytest.fixture
def files() -> Iterator[Any]:
    """Storage of libvirt's test driver, which touches no file."""
    connection = libvirt.open("test:///default")
    pool = connection.storagePoolCreateXML(_POOL)
    yield pool
    pool.destroy()
    connection.close()


def make(files: Any, mapped: bool = False) -> bool:
    return make_private(files, NAME, 4, QEMU, lambda: mapped)


def there(files: Any, mode: str, owner: int) -> None:
    files.createXML(_FILE.format(NAME, _RIGHTS.format(mode, owner)))


def test_a_region_is_made_for_the_emulators_user_alone(files: Any) -> None:
    """Of its size, before QEMU makes it for everybody; the second machine of the job finds it."""
    for mapped in (False, True):
        assert make(files, mapped)
    document = files.storageVolLookupByName(NAME).XMLDesc()
    assert "<mode>0600</mode>" in document
    assert "<owner>64055</owner>" in document
    assert f"<capacity unit='bytes'>{4 << 20}</capacity>" in document


@pytest.mark.parametrize(("mode", "owner"), [("0666", 1000), ("0600", 1000)])
def test_what_somebody_has_put_there_before_is_not_used(files: Any, mode: str, owner: int) -> None:
    """He could read the memory, or write to it."""
    there(files, mode, owner)
    assert make(files)
    (file,) = (one for one in files.listAllVolumes() if one.name() == NAME)
    assert "<mode>0600</mode>" in file.XMLDesc()
    assert "<owner>64055</owner>" in file.XMLDesc()


def test_what_somebody_put_there_stays_while_a_machine_has_it(files: Any) -> None:
    """Another file of that name would part the machines of the job, and neither would know."""
    there(files, "0666", 1000)
    with pytest.raises(RefusedError, match=f"{NAME}: its file in /dev/shm is another user's"):
        make(files, mapped=True)
    assert "<mode>0666</mode>" in files.storageVolLookupByName(NAME).XMLDesc()


@pytest.mark.parametrize("mapped", [True, False])
def test_memory_that_the_emulator_made_keeps_its_words(files: Any, mapped: bool) -> None:
    """A build before this let QEMU make it: the job's machines have it, or it waits for parked ones."""
    there(files, "0644", QEMU[0])
    assert not make(files, mapped)
    assert "<mode>0644</mode>" in files.storageVolLookupByName(NAME).XMLDesc()


def test_a_running_machine_shows_what_it_has(files: Any) -> None:
    """Only that region counts as mapped."""
    connection = files.connect()
    shmem = f"<shmem name='{NAME}'><model type='ivshmem-plain'/><size unit='M'>4</size></shmem>"
    machine = connection.createXML(
        f"<domain type='test'><name>vn1</name><memory>1024</memory><os><type>hvm</type></os>"
        f"<devices>{shmem}</devices></domain>"
    )
    assert is_mapped(connection, NAME)
    assert not is_mapped(connection, f"{NAME}.2")
    machine.destroy()
    assert not is_mapped(connection, NAME)


class SharedFiles:
    """A pool with one host, and what is in its shared memory; one of them cannot be removed."""

    def __init__(self, root: Path, *names: str) -> None:
        self.config = SimpleNamespace(cluster="c1")
        self.devices = DeviceBook(Store(str(root), "c1"))
        self.there = list(names)

    def on(self, host: str) -> SharedFiles:
        return self

    def one_by_one(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def shared_files(self) -> list[str]:
        return list(self.there)

    def remove_shared_file(self, name: str) -> None:
        if name.endswith("f" * 32):
            raise RefusedError(name, "Directory not empty")
        self.there.remove(name)


def test_what_nobody_holds_goes_though_one_of_them_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a secret in its name or without, as older builds had them; nobody's and another's stay."""
    secret = "0123456789abcdef" * 2
    full = f"backfill-c1-5-bm1-{'f' * 32}"
    others = ["backfill-c1-2-8-bm1", f"backfill-c2-7-bm1-{secret}", f"backfill-c1-7-bm2-{secret}", "mine"]
    gone = [NAME, "backfill-c1-7_3.2-bm1", f"{NAME}-{secret}", f"backfill-c1-7.2-bm1-{secret}"]
    pool = SharedFiles(tmp_path, full, *others, *gone)
    sweep(cast("Pool", pool), "bm1")
    assert pool.there == [full, *others]
    assert "shared memory that nobody holds stays on bm1" in caplog.text


def test_without_a_user_to_give_it_to_nothing_is_shared() -> None:
    """libvirt's test driver runs no QEMU."""
    hypervisor = Hypervisor("bm1", "test:///default", LibvirtLimits())
    with pytest.raises(RefusedError, match=f"{NAME}: libvirt on bm1 does not say as whom QEMU runs"):
        hypervisor.make_shared_file(NAME, 4)
    hypervisor.close()
