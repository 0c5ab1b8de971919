"""The libvirt driver's shared directory: claims, memory images, disks and consoles."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.libvirt.settings import ImageFiles
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import DriverError, RefusedError


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "shared"), "grete")


@pytest.fixture
def image(tmp_path: Path) -> ImageFiles:
    disk = tmp_path / "base.raw"
    disk.write_bytes(b"\0" * 4096)
    return ImageFiles("/k", "/i", str(disk), "")


def virtual_size(path: str) -> int:
    shown = subprocess.run(["qemu-img", "info", path], capture_output=True, text=True, check=True)
    line = next(line for line in shown.stdout.splitlines() if "virtual size" in line)
    return int(line.split("(")[1].split()[0])


@pytest.mark.parametrize("name", ["", ".", "..", "../vn1", "a/b", "-x", "a" * 64, "a b", "a\n"])
def test_a_name_that_leads_out_of_the_directory_is_refused(store: Store, name: str) -> None:
    """Names become folders and domains; nothing else may come of them."""
    with pytest.raises(RefusedError, match="no usable name"):
        store.home(name)


def test_claims_are_kept_and_replaced(store: Store) -> None:
    """What was written last is what is read."""
    store.claim("vn1", {"bm2", "bm1"})
    assert store.claims("vn1") == frozenset({"bm1", "bm2"})
    store.claim("vn1", {"bm2"})
    assert store.claims("vn1") == frozenset({"bm2"})


def test_no_folder_means_no_claims_and_a_broken_file_means_unknown(store: Store) -> None:
    """An instance that never was is nowhere; one whose claims are unreadable may be anywhere."""
    assert store.claims("vn1") == frozenset()
    store.claim("vn1", {"bm1"})
    (store.home("vn1") / "claims").write_bytes(b"")
    assert store.claims("vn1") is None
    (store.home("vn1") / "claims").write_bytes(b"\xff\xfe")
    assert store.claims("vn1") is None
    (store.home("vn1") / "claims").unlink()
    assert store.claims("vn1") is None


@pytest.mark.parametrize(
    ("start", "complete"),
    [(b"LibvirtQemudSave\2", True), (b"LibvirtQemudPart\2", False), (b"", False), (b"L", False)],
)
def test_only_a_complete_image_counts(store: Store, start: bytes, complete: bool) -> None:
    """libvirt marks an image as complete at the very end."""
    store.claim("vn1", {"bm1"})
    assert not store.has_memory("vn1")
    store.memory("vn1").write_bytes(start)
    assert store.has_memory("vn1") is complete
    store.discard_memory("vn1")
    store.discard_memory("vn1")
    assert not store.memory("vn1").exists()


@pytest.mark.parametrize("full", [False, True])
def test_what_holds_the_clusters_key_is_secret(store: Store, image: ImageFiles, full: bool) -> None:
    """The seed from the start, the disk when the guest has unpacked it there."""
    store.claim("vn1", {"bm1"})
    store.make("vn1", image, 2, b"seed", full)
    files = store.files("vn1")
    for path in (files.seed, files.disk):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_the_disk_is_an_overlay(store: Store, image: ImageFiles) -> None:
    """It is as large as the flavour says, and holds nothing yet."""
    store.claim("vn1", {"bm1"})
    store.make("vn1", image, 2, b"seed")
    files = store.files("vn1")
    assert virtual_size(files.disk) == 2 << 30
    assert Path(files.disk).stat().st_blocks * 512 < 1 << 20


def test_a_disk_is_never_smaller_than_its_image(store: Store, tmp_path: Path) -> None:
    """A cut-off file system would not mount."""
    base = tmp_path / "base.qcow2"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", base, "3G"], check=True)
    store.claim("vn1", {"bm1"})
    store.make("vn1", ImageFiles("/k", "/i", str(base), "", "qcow2"), 1, b"")
    assert virtual_size(store.files("vn1").disk) == 3 << 30


def test_an_image_that_is_not_there_is_named(store: Store, tmp_path: Path) -> None:
    """The operator reads which file is missing."""
    store.claim("vn1", {"bm1"})
    with pytest.raises(RefusedError, match=r"gone\.raw.*No such file"):
        store.make("vn1", ImageFiles("/k", "/i", str(tmp_path / "gone.raw"), ""), 1, b"")


def test_qemu_imgs_complaint_is_passed_on(store: Store, image: ImageFiles) -> None:
    """In one line."""
    wrong = ImageFiles("/k", "/i", image.disk, "", "no-such-format")
    store.claim("vn1", {"bm1"})
    with pytest.raises(DriverError, match=r"qemu-img failed.*no-such-format") as caught:
        store.make("vn1", wrong, 1, b"")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("takes_s", "ends"), [(1000, True), (1e9, False)])
def test_a_large_image_is_copied_although_that_takes_long(
    store: Store, image: ImageFiles, monkeypatch: pytest.MonkeyPatch, takes_s: float, ends: bool
) -> None:
    """Over a minute for some gigabytes; where it never ends, nobody is told to install qemu-utils."""
    real = subprocess.run

    def slow(argv: list[str], *, timeout: float, **others: Any) -> Any:
        if "convert" in argv and timeout < takes_s:
            raise subprocess.TimeoutExpired(argv, timeout)
        return real(argv, timeout=timeout, **others)

    monkeypatch.setattr(subprocess, "run", slow)
    store.claim("vn1", {"bm1"})
    if ends:
        store.make("vn1", image, 1, b"", full=True)
        return
    late = r"^vn1: qemu-img was ended because it took longer than 3600 s; see how fast"
    with pytest.raises(DriverError, match=late):
        store.make("vn1", image, 1, b"", full=True)


def test_a_program_that_is_missing_is_named(
    store: Store, image: ImageFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the package that brings it."""
    monkeypatch.setenv("PATH", "/nowhere")
    store.claim("vn1", {"bm1"})
    with pytest.raises(DriverError, match=r"cannot run qemu-img: No such file.*; install qemu-utils$"):
        store.make("vn1", image, 1, b"")


def test_the_console_shows_its_end(store: Store) -> None:
    """A long console is not read as a whole; before the first word it is empty."""
    store.claim("vn1", {"bm1"})
    assert store.console("vn1") == ""
    Path(store.files("vn1").console).write_bytes(
        b"x" * 100_000 + b"\r\nbad \xff byte\r\n" + b"".join(b"line %d\r\n" % i for i in range(80))
    )
    shown = store.console("vn1").splitlines()
    assert len(shown) == 60
    assert shown[-1] == "line 79"


def test_a_console_line_that_is_still_being_written_can_be_left_out(store: Store) -> None:
    """A verdict of which only the beginning is there would be read as another one."""
    store.claim("vn1", {"bm1"})
    Path(store.files("vn1").console).write_bytes(b"booted\r\nBACKFILL-CANARY bad: its mem")
    assert store.console("vn1") == "booted\nBACKFILL-CANARY bad: its mem"
    assert store.console("vn1", ended=True) == "booted"
    Path(store.files("vn1").console).write_bytes(b"BACKFILL-CANARY goo")
    assert store.console("vn1", ended=True) == ""


def test_removing_leaves_nothing_and_may_be_repeated(store: Store, image: ImageFiles) -> None:
    """Others' folders stay."""
    for name in ("vn1", "vn2"):
        store.claim(name, {"bm1"})
        store.make(name, image, 1, b"")
    for _ in range(2):
        store.remove("vn1")
        assert not store.exists("vn1")
    assert store.exists("vn2")
