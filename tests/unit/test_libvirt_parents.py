"""The folders of frozen parents: which one is used, which must stay, which may go."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from backfill.core.model.fleet import CloneMethod
from backfill.core.policies.cloning import Choice, Cloning
from backfill.drivers.libvirt.clones.parents import Parent, newest
from backfill.drivers.libvirt.settings import ImageFiles
from backfill.drivers.libvirt.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path), "bm1")


def parent(store: Store, name: str) -> Parent:
    """A complete parent, found good."""
    made = Parent(store.home(name))
    made.home.mkdir(parents=True)
    for part in ("ram", "state", "disk.qcow2"):
        (made.home / part).write_bytes(b"x" * 100)
    (made.home / "good").write_text(json.dumps(made.fingerprint()))
    return made


def test_the_newest_parent_is_used(store: Store) -> None:
    """Clones of older ones live on; new clones come from the last that was found good."""
    parent(store, "parent-aa-1")
    latest = parent(store, "parent-aa-2")
    parent(store, "parent-bb-3")
    assert newest(store, "aa") == latest


@pytest.mark.parametrize("part", ["ram", "state", "disk.qcow2"])
def test_a_parent_that_somebody_wrote_to_is_not_used(store: Store, part: str) -> None:
    """Whatever changed it, its clones would be wrong; nothing else tells."""
    made = parent(store, "parent-aa-1")
    later_ns = made.memory.stat().st_mtime_ns + 1_000_000
    os.utime(made.home / part, ns=(later_ns, later_ns))
    assert newest(store, "aa") is None


def test_a_parent_that_was_never_found_good_is_not_used(store: Store) -> None:
    """Its canary died, or we did before it could say anything."""
    made = parent(store, "parent-aa-1")
    (made.home / "good").unlink()
    assert newest(store, "aa") is None
    (made.home / "good").write_text("{")
    assert newest(store, "aa") is None


def test_what_an_instance_leans_on_is_known(tmp_path: Path) -> None:
    """Kept beside the instance's own files: it goes when the instance goes."""
    shared = Store(str(tmp_path), "grete")
    shared.claim("vn1", {"bm1"})
    shared.lean_on("vn1", tmp_path / "p1")
    assert shared.parents_in_use() == {str(tmp_path / "p1")}
    shared.remove("vn1")
    assert shared.parents_in_use() == frozenset()


def test_what_a_checkpoint_leans_on_stays_and_comes_back_with_it(tmp_path: Path) -> None:
    """Its disk lies above the parent's, also when the instance itself is long gone."""
    shared = Store(str(tmp_path), "grete")
    home = shared.root / ".parents" / "bm1" / "parent-aa-1"
    text = f"<qemu:arg value='memory-backend-file,id=x,mem-path={home}/ram,share=off'/>"
    folder = shared.checkpoints / "c1" / "vn1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"document": text}))
    assert shared.parents_in_use() == {str(home)}
    (folder / "manifest.json").unlink()
    shared.claim("vn1", {"bm1"})
    shared.lean_again("vn1", text)
    assert shared.parents_in_use() == {str(home)}


def test_a_full_copy_needs_its_image_no_more(tmp_path: Path) -> None:
    """Its disk names no backing file, and is as large as was asked for."""
    master = tmp_path / "master.raw"
    master.write_bytes(b"\x01" * 4096)
    shared = Store(str(tmp_path), "grete")
    shared.claim("vn1", {"bm1"})
    shared.make("vn1", ImageFiles("/k", "/i", str(master), ""), 1, b"\0" * 512, full=True)
    header = Path(shared.files("vn1").disk).read_bytes()[:32]
    assert int.from_bytes(header[8:16], "big") == 0  # qcow2: offset of the backing file's name
    assert int.from_bytes(header[24:32], "big") == 1 << 30


def test_the_method_follows_the_rush() -> None:
    """Instant when many are wanted within a minute; a chosen method is taken at its word."""
    auto = Cloning(Choice.AUTO, instant_from_per_min=3)
    assert [auto.choose(n) for n in (0, 2, 3, 50)] == [
        CloneMethod.LINKED,
        CloneMethod.LINKED,
        CloneMethod.INSTANT,
        CloneMethod.INSTANT,
    ]
    assert Cloning(Choice.FULL).choose(50) is CloneMethod.FULL
    assert Cloning().choose(50) is CloneMethod.LINKED
