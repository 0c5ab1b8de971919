"""The files behind shared memory: for QEMU's user alone, whoever was there before."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import libvirt
import pytest

from backfill.core.model.devices import Holding, Region
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.connection.shared_memory import is_mapped, make_private, remove_files
from backfill.drivers.libvirt.devices.book import DeviceBook
from backfill.drivers.libvirt.devices.plugging import sweep
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import RefusedError, UnreachableError

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
    """A pool with one host, and what is in its shared memory; some of them cannot be removed."""

    def __init__(self, root: Path, *names: str) -> None:
        self.config = SimpleNamespace(cluster="c1")
        self.store = Store(str(root), "c1")
        self.devices = DeviceBook(self.store)
        self.there, self.tried = list(names), 0
        self.reached = True

    def on(self, host: str) -> SharedFiles:
        return self

    def one_by_one(self, what: str) -> AbstractContextManager[None]:
        return nullcontext()

    def shared_files(self) -> list[str]:
        return list(self.there)

    def remove_shared_files(self, names: Sequence[str], within_s: float) -> list[str]:
        with (self.store.root / ".devices.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody has to wait for this
        if not self.reached:
            raise UnreachableError("bm1", "no answer")
        self.tried += len(names)
        stay = [name for name in names if name.endswith("f" * 32)]
        self.there = [name for name in self.there if name in stay or name not in names]
        return stay


SECRET = "0123456789abcdef" * 2


def swept(pool: SharedFiles, *freed: str) -> None:
    sweep(cast("Pool", pool), "bm1", [Region(name, 4) for name in freed])


def test_what_nobody_holds_goes_though_one_of_them_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a secret in its name or without, as older builds had them; nobody's and another's stay."""
    full = f"backfill-c1-5-bm1-{'f' * 32}"
    others = ["backfill-c1-2-8-bm1", f"backfill-c2-7-bm1-{SECRET}", f"backfill-c1-7-bm2-{SECRET}", "mine"]
    gone = [NAME, "backfill-c1-7_3.2-bm1", f"{NAME}-{SECRET}", f"backfill-c1-7.2-bm1-{SECRET}"]
    pool = SharedFiles(tmp_path, full, *others, *gone)
    swept(pool)
    assert pool.there == [full, *others]
    assert f"stay on bm1: 1, such as /dev/shm/{full}; look who made that, and remove it" in caplog.text


def test_names_that_anybody_makes_up_hold_up_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A job's end tries few of them, after what the job gave back, and says so in one line."""
    freed = f"{NAME}-{SECRET}"
    made_up = [f"backfill-c1-{number}-bm1-{'f' * 32}" for number in range(2000)]
    pool = SharedFiles(tmp_path, *made_up, freed)
    swept(pool, freed)
    assert pool.there == made_up
    assert pool.tried < 100
    assert len(caplog.records) == 1


def test_a_region_that_somebody_holds_again_stays(tmp_path: Path) -> None:
    """A fellow on the host had it as well."""
    pool = SharedFiles(tmp_path, NAME)
    pool.store.home("vn2").mkdir(parents=True)
    pool.devices.decide("vn2", lambda _: Holding("vn2", "bm1", "7", "ann", (), (Region(NAME, 4),)))
    swept(pool, NAME)
    assert pool.there == [NAME]


def test_a_host_that_does_not_answer_is_asked_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is there goes another time."""
    pool = SharedFiles(tmp_path, NAME, f"{NAME}-{SECRET}")
    pool.reached = False
    swept(pool, NAME)
    assert [record.getMessage() for record in caplog.records] == [
        "shared memory that nobody holds stays on bm1: bm1: no answer"
    ]


class StoragePool:
    """Storage of which each removal ends in its own way."""

    def __init__(self, **ends: int) -> None:
        self.ends, self.asked = ends, [""]

    def storageVolLookupByName(self, name: str) -> StoragePool:  # noqa: N802 - libvirt's word
        self.asked.append(name)
        return self

    def delete(self) -> None:
        if code := self.ends[self.asked[-1]]:
            error = libvirt.libvirtError("no")
            error.err = (code, libvirt.VIR_FROM_STORAGE, "no", 2, "", "", "", 0, 0)
            raise error


def test_files_are_removed_as_long_as_there_is_time_and_an_answer() -> None:
    """One that stays does not keep the others; a connection that is lost does."""
    fine, stays, gone = 0, libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_NO_STORAGE_VOL
    assert remove_files(StoragePool(a=stays, b=gone, c=fine), ["a", "b", "c"], 60.0) == ["a"]
    assert remove_files(StoragePool(), ["a", "b"], -1.0) == ["a", "b"]
    broken = StoragePool(a=libvirt.VIR_ERR_INVALID_CONN, b=fine)
    with pytest.raises(libvirt.libvirtError):
        remove_files(broken, ["a", "b"], 60.0)
    assert broken.asked == ["", "a"]


def test_without_a_user_to_give_it_to_nothing_is_shared() -> None:
    """libvirt's test driver runs no QEMU."""
    hypervisor = Hypervisor("bm1", "test:///default", LibvirtLimits())
    with pytest.raises(RefusedError, match=f"{NAME}: libvirt on bm1 does not say as whom QEMU runs"):
        hypervisor.make_shared_file(NAME, 4)
    hypervisor.close()
