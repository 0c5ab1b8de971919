"""Hosts with a directory each: the contract, and what becomes of files on their way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.checkpoints.folders import copy_file
from backfill.ports.errors import BadOutputError, BusyError, NoCapacityError, RefusedError
from tests.contract.instance_provider import InstanceProviderContract
from tests.contract.instance_rig import CLUSTER, born, spec, state
from tests.contract.libvirt_testdriver import TestDriverRig, TestHypervisor


def separate(tmp_path: Path) -> TestDriverRig:
    return TestDriverRig(tmp_path, directories={host: str(tmp_path / host) for host in ("hv1", "hv2")})


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = separate(tmp_path)
    yield made
    made.end()


class TestSeparateDirectories(InstanceProviderContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[TestDriverRig]:
        made = separate(tmp_path)
        yield made
        made.end()


def suspended(rig: TestDriverRig) -> tuple[str, Path, Path]:
    """Its host, and its folders on both hosts."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    one, other = (Path(rig.config.directories[h], CLUSTER, "vn1") for h in rig.provider.hosts)
    return host, one, other


def test_all_files_follow_a_suspended_instance(rig: TestDriverRig) -> None:
    """Afterwards the old host has none of them; a deletion leaves none anywhere."""
    host, old, new = suspended(rig)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    rig.provider.migrate(host, "vn1", "hv2")
    assert not old.exists()
    assert {path.name: path.read_bytes() for path in new.iterdir()} == before
    assert "memory.save" in before
    rig.provider.delete("hv2", "vn1")
    assert not new.exists()
    assert list(Path(rig.config.directory, CLUSTER).iterdir()) == []


def test_a_copy_that_is_not_the_same_is_not_taken(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that swallows a byte is found before the old state is given up."""
    host, old, new = suspended(rig)

    def bad_disk(name: str, source: Path, target: Path) -> None:
        copy_file(name, source, target)
        whole = bytearray(target.read_bytes())
        if whole:  # a console may have nothing yet
            whole[-1] ^= 1
        target.write_bytes(whole)

    monkeypatch.setattr("backfill.drivers.libvirt.migration.carrying.copy_file", bad_disk)
    with pytest.raises(BadOutputError, match="is not the same"):
        rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is InstanceState.SUSPENDED
    assert state(rig, host="hv2") is None
    assert not new.exists()
    rig.provider.restore(host, "vn1")
    assert (old / "disk.qcow2").exists()


def test_what_a_crash_left_on_the_other_host_is_never_restored(rig: TestDriverRig) -> None:
    """Copied and defined there, not yet given up here: whoever goes on first is the only one."""
    host, old, new = suspended(rig)
    pool = rig.provider._pool
    document = pool.on(host).document("vn1")
    rig.provider.migrate(host, "vn1", "hv2")
    pool.on(host).define("vn1", document)  # as before the old one was forgotten
    old.mkdir()
    for path in new.iterdir():
        (old / path.name).write_bytes(path.read_bytes())
    pool.store.claim("vn1", {"hv1", "hv2"})
    rig.provider.restore("hv2", "vn1")
    with pytest.raises(BusyError, match="there is nothing to restore"):
        rig.provider.restore(host, "vn1")
    rig.provider.thaw("hv2", "vn1")
    rig.provider.suspend("hv2", "vn1")
    assert state(rig) is InstanceState.OFF
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete(host, "vn1")
    assert not old.exists()
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete("hv2", "vn1")


def test_an_instance_stays_with_its_parent(rig: TestDriverRig) -> None:
    """An instant clone cannot live where its parent's memory and disk are not."""
    host, old, _ = suspended(rig)
    rig.provider._pool.store.lean_on("vn1", old.parent / ".parents" / host / "parent-x-1")
    with pytest.raises(RefusedError, match="instant clone"):
        rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is InstanceState.SUSPENDED


def test_files_of_a_move_that_was_cut_off_are_a_leak(rig: TestDriverRig) -> None:
    """The instance is on one host; what lies on the other one is found and removed, it is not."""
    _, old, new = suspended(rig)
    new.mkdir(parents=True)
    (new / "disk.qcow2").write_bytes(b"half")
    (leak,) = rig.provider.leaks(0.0)
    assert leak.where == str(new)
    rig.provider.remove_leak("vn1", 0.0)
    assert not new.exists()
    assert (old / "memory.save").exists()


def test_a_directory_of_its_own_may_be_the_common_one(tmp_path: Path) -> None:
    """What the daemon notes there of instances on other hosts is no leak and stays with them."""
    own = {"hv1": str(tmp_path / "shared"), "hv2": str(tmp_path / "hv2")}
    rig = TestDriverRig(tmp_path, directories=own)
    rig.provider.create(spec(rig, host="hv2"))
    assert rig.provider.leaks(0.0) == ()
    rig.provider.suspend("hv2", "vn1")
    rig.provider.migrate("hv2", "vn1", "hv1")
    assert rig.provider.leaks(0.0) == ()
    rig.provider.delete("hv1", "vn1")
    assert [path for place in own.values() for path in Path(place, CLUSTER).iterdir()] == []
    rig.end()


@pytest.mark.parametrize(("old", "new"), [("hv1", "hv2"), ("hv2", "hv1")])
def test_one_host_may_have_a_directory_and_the_other_the_common_one(
    tmp_path: Path, old: str, new: str
) -> None:
    """What the daemon notes in the common one survives the files that come and go there."""
    rig = TestDriverRig(tmp_path, directories={"hv2": str(tmp_path / "hv2")})
    pool = rig.provider._pool
    rig.provider.create(spec(rig, host=old))
    rig.provider.suspend(old, "vn1")
    rig.provider.migrate(old, "vn1", new)
    assert pool.store.claims("vn1") == frozenset({new})
    assert state(rig, host=new) is InstanceState.SUSPENDED
    assert not pool.store_on(old).memory("vn1").exists()
    rig.provider.restore(new, "vn1")
    rig.provider.delete(new, "vn1")
    assert [path for store in pool.stores for path in store.root.iterdir()] == []
    rig.end()


def test_a_failed_move_into_the_common_directory_loses_no_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without one the complete memory image on the old host would be nobody's."""
    rig = TestDriverRig(tmp_path, directories={"hv2": str(tmp_path / "hv2")})
    rig.provider.create(spec(rig, host="hv2"))
    rig.provider.suspend("hv2", "vn1")

    def full_disk(name: str, source: Path, target: Path) -> None:
        raise NoCapacityError(name, f"cannot copy {source} to {target}")

    monkeypatch.setattr("backfill.drivers.libvirt.migration.carrying.copy_file", full_disk)
    with pytest.raises(NoCapacityError):
        rig.provider.migrate("hv2", "vn1", "hv1")
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete("hv2", "vn1")
    rig.end()


def test_a_memory_finds_its_disk_where_the_host_has_it(tmp_path: Path) -> None:
    """It may have been written on a host with another directory, the common one or its own."""
    seen: list[str] = []

    class Restoring(TestHypervisor):
        def restore(self, name: str, path: Path, document: str | None = None) -> None:
            assert document is not None
            disk = fromstring(document).find("devices/disk/source")
            assert disk is not None
            seen.append(disk.attrib["file"])
            super().restore(name, path, document)

    rig = TestDriverRig(tmp_path, Restoring, {"hv2": str(tmp_path / "hv2")})
    born(rig)
    for host in ("hv1", "hv2"):
        rig.provider.suspend(host, "vn1")
        rig.provider.restore(host, "vn1")
        rig.provider.suspend(host, "vn1")
        if host == "hv1":
            rig.provider.migrate(host, "vn1", "hv2")
            rig.provider.restore("hv2", "vn1")
    disks = [rig.provider._pool.store_on(host).files("vn1").disk for host in ("hv1", "hv2")]
    assert set(seen) == set(disks)
    rig.provider.delete("hv2", "vn1")
    rig.end()
