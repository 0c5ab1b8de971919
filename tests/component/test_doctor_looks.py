"""How `backfill doctor` looks: at directories of this machine and at addresses, leaving all as it was."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from types import SimpleNamespace

import libvirt
import pytest

from backfill.drivers.libvirt.inspection import directory_mode
from backfill.ui.doctor import network, places


def test_a_directory_is_written_and_left_as_it_was(tmp_path: Path) -> None:
    with places.write_into(str(tmp_path)) as (place, name):
        assert place.problem == ""
        assert [p.name for p in tmp_path.iterdir()] == [name]
        assert place.free_mb
        assert abs(place.ahead_s) < 60
    assert list(tmp_path.iterdir()) == []
    with places.write_into(str(tmp_path / "none")) as (place, name):
        assert (place.problem, place.there, name) == ("No such file or directory", False, "")


def test_the_mount_point_of_a_directory_is_known_and_whether_fstab_s_is_mounted(tmp_path: Path) -> None:
    fstab = tmp_path / "fstab"
    fstab.write_text(
        f"# nfs:/old {tmp_path} nfs4 rw 0 0\nnfs:/a {tmp_path} nfs4 rw 0 0\nproc /proc proc rw 0 0\n"
    )
    (tmp_path / "guests").mkdir()
    with places.write_into(str(tmp_path / "guests"), fstab) as (place, _):
        assert place.unmounted == str(tmp_path)
    with places.write_into(str(tmp_path / "none"), fstab) as (place, _):
        assert (place.problem, place.unmounted) == ("No such file or directory", str(tmp_path))
    with places.write_into("/dev/shm", tmp_path / "no-fstab") as (place, _):
        assert (place.mount, place.unmounted) == ("/dev/shm", "")
    with places.write_into("/dev/shm", fstab) as (place, _):
        assert place.unmounted == ""
    fstab.write_bytes(f"# \xfcber\nnfs:/a {tmp_path} nfs4 rw 0 0\n".encode("latin-1"))
    with places.write_into(str(tmp_path), fstab) as (place, _):
        assert place.unmounted == str(tmp_path)


@pytest.mark.parametrize(
    ("name", "written"),
    [("a b", r"a\040b"), ("a\tb", r"a\011b"), ("a\\b", r"a\134b"), ("\xfc", r"\303\274"), ("ab", "ab/")],
)
def test_a_mount_point_is_known_however_fstab_writes_it(tmp_path: Path, name: str, written: str) -> None:
    """Blanks and the like are octal numbers there (fstab(5))."""
    (tmp_path / name).mkdir()
    fstab = tmp_path / "fstab"
    fstab.write_text(f"nfs:/a {tmp_path}/{written} nfs4 rw 0 0\n")
    with places.write_into(str(tmp_path / name), fstab) as (place, _):
        assert place.unmounted == str(tmp_path / name)


def test_what_can_be_made_counts_as_writable(tmp_path: Path) -> None:
    assert not places.may_write(str(tmp_path / "a/b")).problem
    (tmp_path / "file").touch()
    assert "is no directory" in places.may_write(str(tmp_path / "file/a")).problem


def test_an_address_answers_whether_it_takes_or_refuses() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert network.answering({"a": "127.0.0.1", "b": "127.0.0.2"}, port) == {
            "a": "127.0.0.1",
            "b": "127.0.0.2",  # refused, and so somebody is there
        }
        assert network.connect_problem(f"127.0.0.1:{port}") is None
        assert network.listen_problem(f"127.0.0.1:{port}") is None
    assert network.connect_problem(f"127.0.0.1:{port}") is not None
    assert network.listen_problem(f"127.0.0.1:{port}") is None
    assert network.listen_problem(f"192.0.2.1:{port}") is not None


def test_a_directory_of_ones_own_that_is_open_to_all_is_exposed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As well as all below it, there or not; a socket that everybody may use is not a directory."""
    modes = {"/scratch": 0o41777, "/run": 0o40755, "/run/daemon.sock": 0o140666}

    def stat(path: Path) -> SimpleNamespace:
        if str(path) not in modes:
            raise FileNotFoundError(path)
        return SimpleNamespace(st_mode=modes[str(path)])

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stat)
        assert places.exposed("/run/daemon.sock", "/scratch/vm/not-yet") == "/scratch/vm/not-yet"
        assert places.exposed("/run/daemon.sock") == ""


def test_an_ipv6_address_is_asked_without_its_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def refused(address: tuple[str, int], *_: object) -> socket.socket:
        asked.append(address)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr(socket, "create_connection", refused)
    assert network.connect_problem("[fd00::1]:6817") == "refused"
    assert asked == [("fd00::1", 6817)]


def test_what_is_where_everybody_may_write_is_exposed(tmp_path: Path) -> None:
    """At any depth: who makes the first directory of a path has all of it."""
    assert places.exposed("/srv/backfill", "", "/dev/shm/a/b", "/tmp/c") == "/dev/shm/a/b"
    assert places.exposed("/srv/backfill", "/tmpfs", "/var/lib/backfill") == ""
    assert places.is_open("/var/tmp/x")
    assert not places.is_open("/srv")
    (tmp_path / "protected_symlinks").write_text("0\n")
    assert places.protections(tmp_path) == {"protected_symlinks": "0\n"}


class Storage:
    """A host's libvirt with one directory of others', which it has looked through before."""

    def storagePoolLookupByTargetPath(self, path: str) -> SimpleNamespace:  # noqa: N802  as libvirt has it
        if path != "/scratch":
            raise libvirt.libvirtError("no storage pool with matching target path")
        mode = "<pool><target><permissions><mode>0777</mode></permissions></target></pool>"
        return SimpleNamespace(isActive=lambda: True, refresh=lambda: None, XMLDesc=lambda: mode)

    def storagePoolCreateXML(self, _: str) -> None:  # noqa: N802  as above
        raise libvirt.libvirtError("cannot open directory")


def test_a_directory_of_a_host_tells_its_mode_or_cannot_be_seen() -> None:
    assert directory_mode(Storage(), "/scratch") == 0o777
    assert directory_mode(Storage(), "/nowhere") is None


def test_nothing_that_a_host_has_mounted_in_its_root_is_opened() -> None:
    assert places.ways_of_host("/srv/backfill/guests") == ("/srv/backfill/guests", "/srv/backfill", "/srv")
    assert places.ways_of_host("not-a-path") == ()
