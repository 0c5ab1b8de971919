"""Checkpoints as files: packed when that pays, refused when damaged, dropped whole."""

from __future__ import annotations

import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from backfill.core.model.fleet import Checkpoint
from backfill.core.policies.checkpoints import Checkpoints as Policy
from backfill.drivers.libvirt import programs
from backfill.drivers.libvirt.checkpoints import packing
from backfill.drivers.libvirt.checkpoints.folders import CheckpointFolders, copy_file
from backfill.drivers.libvirt.checkpoints.packing import Trial, choose
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DamagedError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreadableError,
)

DOCUMENT = "<domain/>"
TEXT = b"LibvirtQemudSave" + b"all work and no play " * 50_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(str(tmp_path), "c1")
    for name in ("vn1", "vn2"):
        made.home(name).mkdir(parents=True)
        (made.home(name) / "memory.save").write_bytes(TEXT)
        (made.home(name) / "seed.tar").write_bytes(b"seed")
        (made.home(name) / "disk.qcow2").write_bytes(b"disk of " + name.encode())
    return made


def asked(name: str = "vn1", *members: str) -> Checkpoint:
    return Checkpoint("5-1", name, job="5", members=members or (name,), created_s=1.0)


def test_what_compresses_well_is_packed_and_comes_back_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance's own image may be removed meanwhile, as a restore does."""
    # Nothing is packed by a machine that is too slow at it, such as this one under load.
    monkeypatch.setattr(packing, "_SLOWEST_MB_S", 0.0)
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    store.discard_memory("vn1")
    (manifest,) = kept.verify("5-1")
    assert manifest.sealed
    assert manifest.checkpoint.compression.startswith("zstd-")
    assert manifest.checkpoint.size_mb < len(TEXT) / 1e6 / 2
    ready = {place: builder for builder, place in kept.unpack(manifest, store.home("vn1"))}
    assert ready[store.memory("vn1")].read_bytes() == TEXT
    assert ready[Path(store.files("vn1").disk)].read_bytes() == b"disk of vn1"


def test_noise_is_kept_as_it_is(store: Store) -> None:
    """Packing what cannot be packed would cost time at both ends."""
    store.memory("vn1").write_bytes(os.urandom(200_000))
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    (manifest,) = kept.verify("5-1")
    assert manifest.checkpoint.compression == "none"
    assert "does not pay" in manifest.checkpoint.compression_why


def test_the_level_is_chosen_by_what_it_did_to_a_sample() -> None:
    """Little more saved is not worth much more time; too slow is no choice at all."""
    assert choose([Trial(1, 0.50, 300), Trial(3, 0.49, 100)]).level == 1
    assert choose([Trial(1, 0.50, 300), Trial(3, 0.30, 100)]).level == 3
    assert choose([Trial(1, 0.50, 300), Trial(3, 0.30, 5)]).level == 1
    assert choose([Trial(1, 0.97, 300), Trial(3, 0.95, 100)]).level == 0
    assert choose([]).level == 0


def test_speeds_are_those_of_the_process_whatever_else_the_machine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each level takes two seconds of CPU here, for however long it has to wait for that."""
    sample = tmp_path / "memory.save"
    sample.write_bytes(bytes(4_000_000))
    wait4 = os.wait4

    def waited(pid: int, options: int) -> tuple[int, int, SimpleNamespace]:
        return (*wait4(pid, options)[:2], SimpleNamespace(ru_utime=1.5, ru_stime=0.5))

    monkeypatch.setattr("os.wait4", waited)
    assert [(trial.mb_s, trial.share < 0.1) for trial in packing.measure(sample)] == [(2.0, True)] * 2


def test_a_packer_that_hangs_is_ended_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, sample = tmp_path / "zstd", tmp_path / "sample"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    sample.write_bytes(b"memory" * 1000)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "WHOLE_FILE_S", 0.1)
    with pytest.raises(BadOutputError, match="zstd failed"):
        packing.measure(sample)


@pytest.mark.parametrize("part", ["memory", "disk"])
def test_a_damaged_file_is_named(store: Store, part: str) -> None:
    """One byte is enough."""
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    (manifest,) = kept.verify("5-1")
    (file,) = Path(manifest.checkpoint.where).glob(f"{part}*")
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(BadOutputError, match=rf"{part}.*is damaged"):
        kept.verify("5-1")
    file.unlink()
    with pytest.raises(BadOutputError, match="is missing"):
        kept.verify("5-1")


def test_damage_is_for_good_and_a_directory_that_is_not_mounted_is_not(store: Store, tmp_path: Path) -> None:
    """Whoever needs the checkpoint waits for a file server, and not for a file to mend itself."""
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    (manifest,) = kept.verify("5-1")
    (Path(manifest.checkpoint.where) / manifest.parts[0].stored).unlink()
    with pytest.raises(DamagedError) as damage:
        kept.verify("5-1")
    assert not damage.value.retry
    store.root.rename(tmp_path / "unmounted")
    with pytest.raises(UnreadableError, match="mounted") as out:
        kept.verify("5-1")
    assert out.value.retry


def test_a_part_without_its_fellows_is_no_checkpoint(store: Store) -> None:
    """A parallel job comes back with all of its instances or not at all."""
    kept = CheckpointFolders(store)
    kept.keep(asked("vn1", "vn1", "vn2"), DOCUMENT, store.home("vn1"), None)
    with pytest.raises(BadOutputError, match="vn2 is missing"):
        kept.verify("5-1")
    kept.keep(asked("vn2", "vn1", "vn2"), DOCUMENT, store.home("vn2"), None)
    assert len(kept.verify("5-1")) == 2


def test_an_unreadable_manifest_is_shown_and_can_be_dropped(store: Store) -> None:
    """It takes room, so people must see it."""
    kept = CheckpointFolders(store)
    where = kept.keep(asked(), DOCUMENT, store.home("vn1"), None).where
    Path(where, "manifest.json").write_text("{")
    (shown,) = kept.all()
    assert "manifest cannot be read" in shown.problem
    assert shown.size_mb > 0
    kept.drop("5-1")
    assert list(kept.all()) == []
    assert not Path(where).exists()


def test_what_an_interrupted_daemon_left_is_finished(store: Store) -> None:
    """Unsealed ones are sealed; a folder without a manifest is none."""
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    halves = [store.checkpoints / name / "vn1" for name in ("6-1", "7-1")]
    for half in halves:
        half.mkdir(parents=True)
        (half / "memory.save").write_bytes(TEXT)
    then_s = time.time() - 7200
    for path in (halves[0] / "memory.save", halves[0]):
        os.utime(path, (then_s, then_s))
    CheckpointFolders(store).tend()
    assert [bool(c.checksum) for c in kept.all()] == [True]
    # A half one takes room that no quota counts; a young one may be on its way.
    assert not halves[0].parent.exists()
    assert halves[1].exists()


def test_the_quota_counts_what_is_on_its_way(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Members of one job are kept at the same time: together they may not exceed it either."""
    kept, begun, go_on = CheckpointFolders(store), threading.Event(), threading.Event()

    def slow_disk(name: str, source: Path, target: Path) -> None:
        begun.set()
        assert go_on.wait(30)
        copy_file(name, source, target)

    monkeypatch.setattr("backfill.drivers.libvirt.checkpoints.folders.copy_file", slow_disk)
    home = store.home("vn1")
    first = threading.Thread(target=kept.keep, args=(asked(), DOCUMENT, home, 1.5))
    first.start()
    assert begun.wait(30)
    with pytest.raises(NoCapacityError, match="does not fit"):
        kept.keep(asked("vn2"), DOCUMENT, store.home("vn2"), 1.5)
    go_on.set()
    first.join()
    assert [c.name for c in kept.all()] == ["vn1"]


def test_the_quota_counts_what_is_there(store: Store) -> None:
    """The second one does not fit; the first stays."""
    kept = CheckpointFolders(store)
    kept.keep(asked(), DOCUMENT, store.home("vn1"), 1.5)
    with pytest.raises(NoCapacityError, match="does not fit"):
        kept.keep(asked("vn2"), DOCUMENT, store.home("vn2"), 1.5)
    assert [c.name for c in kept.all()] == ["vn1"]


def test_a_full_disk_refuses_only_what_has_to_be_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory image is there already and gets a second name: it needs no room."""
    real = shutil.disk_usage(store.root)
    nearly_full = real._replace(free=200_000)
    monkeypatch.setattr(
        "backfill.drivers.libvirt.checkpoints.folders.shutil.disk_usage", lambda _: nearly_full
    )
    kept = CheckpointFolders(store)
    assert kept.keep(asked(), DOCUMENT, store.home("vn1"), None).size_mb > 1.0
    (store.home("vn2") / "disk.qcow2").write_bytes(os.urandom(400_000))
    with pytest.raises(NoCapacityError, match="takes more than the 0 MB that are free"):
        kept.keep(asked("vn2"), DOCUMENT, store.home("vn2"), None)


def test_bad_names_and_missing_memory_are_refused(store: Store) -> None:
    """An id is a folder's name and nothing else."""
    kept = CheckpointFolders(store)
    with pytest.raises(RefusedError, match="is no id"):
        kept.drop("../vn1")
    with pytest.raises(NotFoundError):
        kept.verify("5-9")
    store.discard_memory("vn1")
    with pytest.raises(BusyError, match="not suspended"):
        kept.keep(asked(), DOCUMENT, store.home("vn1"), None)
    assert list(kept.all()) == []


def test_what_has_expired_goes_and_what_cannot_be_read_stays() -> None:
    """Nobody knows when an unreadable one was to go."""
    kept = [
        Checkpoint("1", "a", expires_s=10.0),
        Checkpoint("1", "b", expires_s=10.0),
        Checkpoint("2", "a", expires_s=30.0),
        Checkpoint("3", "a", problem="unreadable"),
    ]
    assert Policy().expired(kept, 20.0) == ("1",)


# --- of several instances -------------------------------------------------------------------------


def kept_both(store: Store, identity: str = "5-1") -> CheckpointFolders:
    """Both parts of a job on two nodes."""
    kept = CheckpointFolders(store)
    for name in ("vn1", "vn2"):
        kept.keep(replace(asked(name, "vn1", "vn2"), id=identity), DOCUMENT, store.home(name), None)
    return kept


def test_one_checksum_says_that_all_parts_are_there(store: Store) -> None:
    """It is noted when the last part is sealed, and each part shows it."""
    kept = kept_both(store)
    first, second = (kept.folder("5-1", name) for name in ("vn1", "vn2"))
    kept.seal(first)
    assert [part.whole for part in kept.all()] == ["", ""]
    kept.seal(second)
    (whole,) = {part.whole for part in kept.all()}
    assert len(whole) == 64
    kept.verify("5-1")
    (first.parent / "whole.json").unlink()  # the daemon died before it was noted
    kept.tend()
    assert {part.whole for part in kept.all()} == {whole}


def test_a_part_of_another_moment_is_refused(store: Store) -> None:
    """It is sealed and undamaged by itself, and belongs to a checkpoint that was made later."""
    kept = kept_both(store)
    kept.verify("5-1")
    (store.home("vn2") / "disk.qcow2").write_bytes(b"later disk of vn2")
    kept_both(store, "5-2").verify("5-2")
    shutil.rmtree(kept.folder("5-1", "vn2"))
    shutil.copytree(kept.folder("5-2", "vn2"), kept.folder("5-1", "vn2"))
    with pytest.raises(BadOutputError, match="its parts are not those of one moment"):
        kept.verify("5-1")


def test_half_a_checkpoint_goes_when_nobody_adds_to_it_any_more(store: Store) -> None:
    """One that is just being kept stays, and so does a whole one."""
    kept = kept_both(store, "5-2")
    kept.keep(asked("vn1", "vn1", "vn2"), DOCUMENT, store.home("vn1"), None)
    kept.tend()
    assert {part.id for part in kept.all()} == {"5-1", "5-2"}
    long_ago = time.time() - 7200.0
    for folder in (store.checkpoints / "5-1", store.checkpoints / "5-2"):
        for path in (*folder.rglob("*"), folder):
            os.utime(path, (long_ago, long_ago))
    kept.tend()
    assert {part.id for part in kept.all()} == {"5-2"}


def test_a_note_that_cannot_be_ours_is_told(store: Store) -> None:
    """The checkpoint is of no use then, and shown as such."""
    kept = kept_both(store)
    kept.verify("5-1")
    (kept.folder("5-1", "vn1").parent / "whole.json").write_text("{")
    assert all("is damaged" in part.problem for part in kept.all())
    with pytest.raises(BadOutputError, match=r"whole\.json is damaged"):
        kept.verify("5-1")
