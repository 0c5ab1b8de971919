"""What the libvirt driver says of files that it cannot read: never "there is none"."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.clones.parents import Parent
from backfill.drivers.libvirt.connection.domain_xml import Label
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.connection.states import DomainState, PausedReason, ShutoffReason
from backfill.drivers.libvirt.devices.book import DeviceBook
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import LibvirtConfig, Surroundings
from backfill.drivers.libvirt.store import Store, folders_in, read_text
from backfill.ports.errors import BadOutputError, UnreadableError
from tests.contract.hiding import as_nobody, unnoticed

_SAVED = b"LibvirtQemudSave" + bytes(64)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A folder that everybody may enter, unlike those that pytest makes."""
    made = Path(tempfile.mkdtemp(prefix="backfill-unreadable-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def store(directory: Path) -> Store:
    """With one instance, whose memory is saved."""
    made = Store(str(directory / "shared"), "grete")
    made.claim("vn1", {"bm1"})
    made.memory("vn1").write_bytes(_SAVED)
    return made


@contextmanager
def struck(number: int) -> Iterator[None]:
    """Inside, every look at a file fails like that, as when a file server went away."""

    def fails(path: Any, *_args: object, **_more: object) -> Any:
        raise OSError(number, os.strerror(number), str(path))

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in ((Path, ("open", "read_text", "stat")), (os, ("scandir",))):
            for name in names:
                patch.setattr(owner, name, fails)
        yield


READINGS: dict[str, Callable[[Store], object]] = {
    "memory": lambda store: store.has_memory("vn1"),
    "folder": lambda store: store.exists("vn1"),
    "parent": lambda store: store.leans_on("vn1"),
    "parents": lambda store: store.parents_in_use(),
    "devices of one": lambda store: DeviceBook(store).of("vn1"),
    "all devices": lambda store: DeviceBook(store).all(),
    "a parent's verdict": lambda store: Parent(store.home("vn1")).intact(),
    "folders": lambda store: folders_in(store.root),
}


@pytest.mark.parametrize("what", READINGS)
@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ENOTCONN])
def test_no_reading_takes_an_error_for_an_answer(store: Store, what: str, number: int) -> None:
    """The path, the system's reason and a next step are named, whatever is asked."""
    with struck(number), pytest.raises(UnreadableError, match=str(store.root)) as caught:
        READINGS[what](store)
    assert os.strerror(number) in caught.value.problem
    assert caught.value.remedy


def test_a_memory_that_only_root_may_read_is_not_taken_for_none(store: Store) -> None:
    """As for a daemon of the user slurm: libvirtd writes it as root, for root alone."""
    store.memory("vn1").chmod(0o600)
    with as_nobody(), pytest.raises(UnreadableError, match=r"memory\.save: Permission denied") as e:
        store.has_memory("vn1")
    assert "uid 65534" in str(e.value)
    assert store.has_memory("vn1")


def test_a_folder_that_may_not_be_entered_is_no_empty_one(store: Store) -> None:
    """Nor is a directory that is not there: it is not mounted."""
    store.home("vn1").chmod(0o700)
    with as_nobody(), pytest.raises(UnreadableError, match="Permission denied"):
        store.has_memory("vn1")
    store.home("vn1").chmod(0o711)
    unmounted = Store(str(store.root.parent.parent / "empty"), "grete")
    with pytest.raises(UnreadableError, match=r"empty/grete/vn1.*mounted"):
        unmounted.has_memory("vn1")


def test_no_parent_is_unused_while_a_note_cannot_be_read(store: Store) -> None:
    """A parent that is removed takes the memory of its clones along."""
    store.lean_on("vn1", store.root / ".parents" / "bm1" / "parent-x")
    (store.home("vn1") / "parent").chmod(0o600)
    with as_nobody(), pytest.raises(UnreadableError, match="vn1/parent"):
        store.parents_in_use()
    with pytest.raises(UnreadableError, match="not there"):
        Store(str(store.root / "nowhere"), "grete").parents_in_use()
    assert len(store.parents_in_use()) == 1


@pytest.mark.parametrize("text", ["", "{", '{"instance": "vn1"}', "[]", "null"])
def test_a_half_written_note_of_devices_is_not_taken_for_none(store: Store, text: str) -> None:
    """Its devices are given to nobody else; the file is named."""
    (store.home("vn1") / "devices.json").write_text(text)
    book = DeviceBook(store)
    for ask in (lambda: book.of("vn1"), book.all):
        with pytest.raises(UnreadableError, match=r"devices\.json is damaged.*remove"):
            ask()


def test_claims_that_cannot_be_read_are_unknown(store: Store) -> None:
    """None, so that no second one is started."""
    (store.home("vn1") / "claims").chmod(0o600)
    with as_nobody():
        assert store.claims("vn1") is None


def test_a_checkpoint_that_cannot_be_read_is_not_called_damaged(store: Store) -> None:
    """Nobody is told to delete it: what is wrong is who reads it."""
    pool = pool_of(store, lambda: None)
    folder = store.checkpoints / "7-1" / "vn1"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / "manifest.json").chmod(0o600)
    with as_nobody():
        (seen,) = pool.checkpoints.all()
        assert "Permission denied" in seen.problem
        with pytest.raises(UnreadableError):
            pool.checkpoints.verify("7-1")
    folder.chmod(0o700)
    with as_nobody():
        (seen,) = pool.checkpoints.all()
        assert "Permission denied" in seen.problem
        pool.checkpoints.tend()
    assert (folder / "manifest.json").exists()
    with pytest.raises(BadOutputError):
        pool.checkpoints.verify("7-1")


class Asked:
    """A hypervisor that is asked whether it can read the image."""

    def __init__(self, told: Callable[[], bool | None]) -> None:
        self._told = told

    def has_image(self, _name: str, _path: Path) -> bool | None:
        return self._told()

    def find(self, _name: str) -> Domain | None:
        return domain(DomainState.RUNNING, 1)


def pool_of(store: Store, told: Callable[[], bool | None]) -> Pool:
    around = Surroundings("10.77.0.1", "10.77.0.1:6817", "/key")
    config = LibvirtConfig("grete", {"bm1": "test:///"}, str(store.root.parent), "br0", around, {})
    return Pool(config, store, {"bm1": Asked(told)})  # type: ignore[dict-item]  # all that is used


def domain(state: int, reason: int) -> Domain:
    label = Label(Tag("grete", "vn1", 1), Resources(1, 256), 1.0)
    return Domain("vn1", state, reason, True, label, 100, False)


@pytest.mark.parametrize(
    ("told", "state"),
    [(True, InstanceState.SUSPENDED), (False, InstanceState.OFF), (None, InstanceState.UNKNOWN)],
)
def test_what_we_cannot_read_libvirtd_may_know(store: Store, told: bool | None, state: InstanceState) -> None:
    """It is asked; where it cannot tell either, the state is unknown, with the path."""
    store.memory("vn1").chmod(0o600)
    pool = pool_of(store, lambda: told)
    with as_nobody():
        seen = pool.instance("bm1", domain(DomainState.SHUTOFF, 0))
    assert seen is not None
    assert seen.state is state
    assert ("memory.save" in seen.problem) is (told is None)
    assert seen.rss_mb == 0


@pytest.mark.parametrize("reason", [0, ShutoffReason.SAVED])
def test_an_image_of_which_we_have_not_heard_yet_is_found(store: Store, reason: int) -> None:
    """Our NFS client may say for a minute that it is not there: the folder is asked, and no libvirtd."""
    pool = pool_of(store, lambda: pytest.fail("libvirtd was asked"))
    with unnoticed(store.memory("vn1")):
        seen = pool.instance("bm1", domain(DomainState.SHUTOFF, reason))
    assert seen is not None
    assert seen.state is InstanceState.SUSPENDED


@pytest.mark.parametrize("start", [None, b"LibvirtQemudPart"])
@pytest.mark.parametrize(
    ("told", "state"),
    [(True, InstanceState.SUSPENDED), (False, InstanceState.OFF), (None, InstanceState.UNKNOWN)],
)
def test_what_was_saved_is_not_off_because_we_see_no_image(
    store: Store, start: bytes | None, told: bool | None, state: InstanceState
) -> None:
    """Its libvirtd says whether it is there; where that cannot tell either, nothing is done with it."""
    store.discard_memory("vn1")
    if start is not None:
        store.memory("vn1").write_bytes(start)
    seen = pool_of(store, lambda: told).instance("bm1", domain(DomainState.SHUTOFF, ShutoffReason.SAVED))
    assert seen is not None
    assert seen.state is state
    assert ("bm1 says it saved it, but " in seen.problem) is (told is None)


def test_what_ended_otherwise_and_left_no_image_is_off(store: Store) -> None:
    """Nobody is asked: that costs a call for each look at it."""
    store.discard_memory("vn1")
    pool = pool_of(store, lambda: pytest.fail("libvirtd was asked"))
    seen = pool.instance("bm1", domain(DomainState.SHUTOFF, 1))
    assert seen is not None
    assert seen.state is InstanceState.OFF


def test_what_runs_is_seen_to_run_although_its_notes_cannot_be_read(store: Store) -> None:
    """A host must be given back also while the shared directory is away."""
    store.home("vn1").chmod(0o700)
    pool = pool_of(store, lambda: None)
    with as_nobody():
        seen = pool.instance("bm1", domain(DomainState.RUNNING, 1))
    assert seen is not None
    assert seen.state is InstanceState.RUNNING
    assert not seen.restarted
    assert "Permission denied" in seen.problem


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        (DomainState.PAUSED, PausedReason.IO_ERROR, "could not write to its disk"),
        (DomainState.PAUSED, PausedReason.WATCHDOG, "watchdog"),
        (DomainState.PAUSED, 1, ""),
        (DomainState.SHUTOFF, ShutoffReason.CRASHED, ""),
    ],
)
def test_a_guest_that_stopped_by_itself_says_why(store: Store, state: int, reason: int, said: str) -> None:
    """What people have to mend is told with the instance."""
    seen = pool_of(store, lambda: None).instance("bm1", domain(state, reason))
    assert seen is not None
    assert said in seen.problem
    assert bool(said) is bool(seen.problem)


def test_a_text_that_is_not_there_is_none(directory: Path) -> None:
    """Only that: a folder in its place is an error."""
    assert read_text("vn1", directory / "nothing") is None
    with pytest.raises(UnreadableError, match="Is a directory"):
        read_text("vn1", directory)
