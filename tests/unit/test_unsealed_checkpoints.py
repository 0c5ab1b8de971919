"""A checkpoint without checksums when the power goes: what is on disk vouches for nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backfill.core.model.fleet import Checkpoint
from backfill.core.policies.checkpoints import Checkpoints as Policy
from backfill.drivers.libvirt.checkpoints import packing, unsealed
from backfill.drivers.libvirt.checkpoints.folders import CheckpointFolders
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import BadOutputError, BusyError, DriverError, NoCapacityError

IMAGE = b"LibvirtQemudSave" + b"memory " * 1000
DISK = "disk.qcow2"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path), "c1")
    home = made.home("vn1")
    home.mkdir(parents=True)
    for name, content in (("memory.save", IMAGE), ("seed.tar", b"seed"), (DISK, b"disk of vn1")):
        (home / name).write_bytes(content)
    return made


def kept(store: Store) -> tuple[CheckpointFolders, Path]:
    """Keep it; the daemon dies before it is sealed."""
    folders = CheckpointFolders(store)
    asked = Checkpoint("5-1", "vn1", job="5", members=("vn1",), created_s=1.0, expires_s=10.0)
    return folders, Path(folders.keep(asked, "<domain/>", store.home("vn1"), None).where)


def booted(monkeypatch: pytest.MonkeyPatch, boot: str, machine: str = unsealed.machine()) -> None:
    """This is the machine's present boot now."""
    monkeypatch.setattr(unsealed, "boot_id", lambda: boot)
    monkeypatch.setattr(unsealed, "machine", lambda: machine)


@pytest.mark.parametrize("name", [DISK, "memory.save"])
def test_a_short_part_is_damaged(store: Store, name: str) -> None:
    """Its copy never reached the disk: it gets no checksum, and is shown as useless."""
    folders, folder = kept(store)
    os.truncate(folder / name, 0)
    folders.tend()
    (shown,) = folders.all()
    assert (shown.checksum, shown.whole) == ("", "")
    assert f"{name} is damaged: it has 0 bytes" in shown.problem
    with pytest.raises(BadOutputError, match=f"{name} is damaged: it has 0 bytes"):
        folders.verify("5-1")


def test_a_part_that_is_gone_is_damaged(store: Store) -> None:
    """Not even its name reached the disk."""
    folders, folder = kept(store)
    (folder / DISK).unlink()
    folders.tend()
    with pytest.raises(BadOutputError, match=f"{DISK} is missing"):
        folders.verify("5-1")


def test_a_restart_of_the_machine_leaves_nothing_that_could_be_sealed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sparse file has its length long before its content, so its size alone vouches for nothing."""
    booted(monkeypatch, "first")
    folders, _ = kept(store)
    booted(monkeypatch, "second")
    folders.tend()
    with pytest.raises(BadOutputError, match="was restarted before"):
        folders.verify("5-1")
    (shown,) = folders.all()
    assert (shown.job, shown.checksum, shown.whole) == ("5", "", "")
    assert "was restarted before" in shown.problem
    assert Policy().expired([shown], 20.0) == ("5-1",)  # what is useless is not kept for ever


def test_a_restart_of_the_daemon_alone_loses_nothing(store: Store) -> None:
    kept(store)
    folders = CheckpointFolders(store)
    folders.tend()
    (shown,) = folders.all()
    assert (bool(shown.whole), shown.problem) == (True, "")


def test_an_instance_that_still_stands_still_is_kept_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is carried on after the restart, and its first copy is worth nothing."""
    booted(monkeypatch, "first")
    _, folder = kept(store)
    os.truncate(folder / DISK, 0)
    booted(monkeypatch, "second")
    folders, _ = kept(store)
    assert folders.verify("5-1")[0].sealed
    assert [one.problem for one in folders.all()] == [""]


def test_what_was_sealed_outlives_a_restart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    booted(monkeypatch, "first")
    folders, _ = kept(store)
    folders.verify("5-1")
    booted(monkeypatch, "second")
    (manifest,) = folders.verify("5-1")
    assert manifest.sealed


def test_another_machine_leaves_the_sealing_to_the_one_that_kept_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be at it; whether it was restarted meanwhile cannot be told from here."""
    booted(monkeypatch, "first", "head1")
    folders, _ = kept(store)
    booted(monkeypatch, "other", "head2")
    with pytest.raises(BusyError, match="head1 has not noted its checksums"):
        folders.verify("5-1")
    (shown,) = folders.all()
    assert (shown.checksum, shown.problem) == ("", "")
    booted(monkeypatch, "first", "head1")
    (manifest,) = folders.verify("5-1")
    assert manifest.sealed


def test_one_that_an_older_version_kept_is_sealed(store: Store) -> None:
    """It has no such note, and the daemon is restarted more often than its machine."""
    folders, folder = kept(store)
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["written"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert folders.verify("5-1")[0].sealed


def test_an_older_version_can_read_the_note(store: Store) -> None:
    """It reads the parts as they were: the note is beside them, and gone when they are sealed."""
    folders, folder = kept(store)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert all(set(part) == {"name", "stored", "checksum"} for part in manifest["parts"])
    assert manifest["written"]["sizes"]["memory.save"] == len(IMAGE)
    folders.verify("5-1")
    assert json.loads((folder / "manifest.json").read_text())["written"] is None


def test_packing_ends_on_disk_before_the_plain_file_goes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power cut leaves a manifest that names files which are gone."""
    monkeypatch.setattr(packing, "_SLOWEST_MB_S", 0.0)
    folders, folder = kept(store)
    flushed: list[tuple[str, bool]] = []
    flush = packing.flush

    def spy(path: Path) -> None:
        flush(path)
        flushed.append((path.name, (folder / "memory.save").exists()))

    for module in ("packing", "manifest"):
        monkeypatch.setattr(f"backfill.drivers.libvirt.checkpoints.{module}.flush", spy)
    folders.verify("5-1")
    assert (folder / "memory.save.zst").exists()
    plain_there = [name for name, there in flushed if there]
    assert plain_there[-2:] == ["manifest.json.new", folder.name]
    assert {"memory.save.zst", "disk.qcow2.zst", "seed.tar.zst"} <= set(plain_there)


@pytest.mark.parametrize(("number", "kind"), [(28, NoCapacityError), (5, DriverError)])
def test_what_cannot_be_flushed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DriverError]
) -> None:
    """A full file server says so at this moment only."""

    def fail(_path: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(packing, "flush", fail)
    with pytest.raises(DriverError) as caught:
        packing.flush_all("vn1", [tmp_path / "disk.qcow2.back"])
    assert type(caught.value) is kind
