"""`backfill daemon --check` looks whether the files that the daemon needs are there."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill.config.model import Config
from backfill.ui.commands.file_check import check_files, foreign_files, unusable
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, text


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A policy file all of whose files are in a directory of the test."""
    section = LIBVIRT.replace("/srv/backfill", f"{tmp_path}/instances").replace("/etc", str(tmp_path))
    for name in "kid":
        section = section.replace(f" /{name}", f" {tmp_path}/{name}")
        (tmp_path / name).touch()
    (tmp_path / "munge.key").touch()
    (tmp_path / "instances").mkdir()
    return loaded(tmp_path, text(section, hosts=LIBVIRT_HOST))


def test_nothing_to_say(config: Config) -> None:
    """All are there, and the cluster's own folder need not be there yet."""
    assert check_files(config) == []


def test_no_hypervisor_of_ours(tmp_path: Path) -> None:
    """A file without libvirt has none of these files."""
    assert check_files(loaded(tmp_path, text())) == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("k", "libvirt.images.default.kernel"),
        ("i", "libvirt.images.default.initrd"),
        ("d", "libvirt.images.default.disk"),
        ("munge.key", "libvirt.surroundings.munge_key"),
    ],
)
def test_missing_file(config: Config, tmp_path: Path, name: str, key: str) -> None:
    """Each is told with its line, its key and its path."""
    (tmp_path / name).unlink()
    (said,) = check_files(config)
    missing = "cannot be read: No such file or directory; write where it is, or see that its file system"
    assert f"{key}: {tmp_path / name} {missing}" in said
    assert said.startswith(f"line {config.lines[key]}: ")


def test_directory(config: Config, tmp_path: Path) -> None:
    """A directory of instances that is missing, or none."""
    place = tmp_path / "instances"
    place.rmdir()
    (said,) = check_files(config)
    assert f"libvirt.directory: {place} cannot be written: No such file or directory" in said
    place.touch()
    (said,) = check_files(config)
    assert f"libvirt.directory: {place} cannot be written: Not a directory; see what lies there" in said


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Inside, this is no root, to whom nothing is closed."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_that_another_user_has_left() -> None:
    """As after a start by root; what the daemon may write is not accused, nor what is not its own."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name, mode in (("journal.db", 0o444), ("daemon.lock", 0o666), ("notes", 0o444)):
            (place / name).touch()
            (place / name).chmod(mode)
        (place / "slurm-conf").mkdir()
        place.chmod(0o755)
        with an_ordinary_user():
            assert foreign_files(place) == ["journal.db"]
            place_of_nobody = place / "none"
            assert foreign_files(place_of_nobody) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "chown -R "),
        (errno.ENOSPC, "make room there"),
        (errno.EROFS, "name another directory as daemon.state_dir"),
    ],
)
def test_a_state_directory_that_is_of_no_use(number: int, remedy: str, tmp_path: Path) -> None:
    """By its file, with the remedy for that trouble."""
    error = OSError(number, os.strerror(number), str(tmp_path / "daemon.lock"))
    said = unusable(tmp_path, error)
    assert said.startswith(f"{tmp_path}/daemon.lock: {os.strerror(number)}; ")
    assert remedy in said
    nameless = OSError(number, os.strerror(number))
    assert unusable(tmp_path, nameless).startswith(f"{tmp_path}: ")
