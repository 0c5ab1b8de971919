"""Hosts prove their clock and their directory before instances are made on them."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import libvirt
import pytest

from backfill.drivers.libvirt.proving import HostProofs, HostTerms, prove
from backfill.ports.errors import UnreachableError


def failed(code: int, text: str) -> libvirt.libvirtError:
    """A call that ended with this code."""
    error = libvirt.libvirtError(text)
    error.err = (code, 0, text, 2, "", "", "", 0, 0)
    return error


class Volume:
    """A file of a host."""

    def __init__(self, path: Path | None, made_s: float) -> None:
        self._path, self._made_s = path, made_s
        if path is not None:
            path.touch()

    def XMLDesc(self) -> str:  # noqa: N802 - libvirt's name
        times = f"<timestamps><mtime>{self._made_s:.9f}</mtime></timestamps>"
        return f"<volume><target>{times}</target></volume>"

    def delete(self) -> None:
        if self._path is not None:
            self._path.unlink()


class Machine:
    """A host and its libvirtd: `ahead_s` of us, with our directory or another of that name."""

    def __init__(self, shared: bool = True, ahead_s: float = 0.0, took_s: float = 0.01) -> None:
        self.shared, self.ahead_s, self.took_s = shared, ahead_s, took_s
        self.now_s = 1000.0
        self.errors: dict[str, libvirt.libvirtError] = {}
        self.pools: list[str] = []

    def storagePoolLookupByTargetPath(self, path: str) -> None:  # noqa: N802 - libvirt's name
        raise failed(libvirt.VIR_ERR_NO_STORAGE_POOL, path)

    def storagePoolCreateXML(self, document: str) -> Pool:  # noqa: N802 - libvirt's name
        path = document.partition("<path>")[2].partition("<")[0]
        if path in self.errors:
            raise self.errors[path]
        self.pools.append(path)
        return Pool(self, path)


class Pool:
    """A directory of that host."""

    def __init__(self, machine: Machine, path: str) -> None:
        self._machine, self._path = machine, path

    def createXML(self, document: str) -> Volume:  # noqa: N802 - libvirt's name
        machine = self._machine
        machine.now_s += machine.took_s
        name = document.partition("<name>")[2].partition("<")[0]
        ours = machine.shared and self._path != "/run"
        made_s = machine.now_s - machine.took_s / 2 + machine.ahead_s
        return Volume(Path(self._path, name) if ours else None, made_s)

    def destroy(self) -> None:
        self._machine.pools.remove(self._path)


def verdict(machine: Machine, root: Path) -> str:
    said = prove(machine, "bm1", HostTerms(root, 1.0), lambda: machine.now_s)
    assert machine.pools == []
    assert not root.exists() or list(root.iterdir()) == []
    return said or ""


def test_a_host_that_is_as_it_should_be(tmp_path: Path) -> None:
    """Nothing is left, there or here, nor a directory of a cluster that has no instance yet."""
    assert verdict(Machine(), tmp_path / "shared" / "c1") == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "shared"]
    assert list((tmp_path / "shared").iterdir()) == []


@pytest.mark.parametrize(("ahead_s", "told"), [(1.2, "1.2 s ahead of"), (-3600.0, "3600.0 s behind")])
def test_a_clock_that_is_off(tmp_path: Path, ahead_s: float, told: str) -> None:
    """The sentence tells by how much, and what the limit is."""
    said = verdict(Machine(ahead_s=ahead_s), tmp_path)
    assert f"its clock is {told} the daemon's" in said
    assert "readiness.clock_offset_s is 1;" in said


def test_an_uncertain_measurement_proves_less(tmp_path: Path) -> None:
    """0.9 s off by a call that took half a second may be more than a second."""
    assert verdict(Machine(ahead_s=0.9), tmp_path) == ""
    assert "ahead" in verdict(Machine(ahead_s=0.9, took_s=0.5), tmp_path)
    assert "cannot be measured" in verdict(Machine(took_s=3.0), tmp_path)


def test_a_directory_that_is_another_one(tmp_path: Path) -> None:
    """It is there, and empty: the mount is missing, on either side."""
    said = verdict(Machine(shared=False), tmp_path)
    assert f"{tmp_path} there is not the directory of that name" in said
    assert "mount the shared directory at both" in said


def test_a_directory_into_which_the_host_may_not_write(tmp_path: Path) -> None:
    """What libvirt says is passed on, and where to look."""
    machine = Machine()
    machine.errors[str(tmp_path)] = failed(libvirt.VIR_ERR_SYSTEM_ERROR, "Permission denied")
    said = verdict(machine, tmp_path)
    assert "libvirtd cannot write" in said
    assert "Permission denied" in said
    assert "so that its root may write" in said


def test_a_directory_that_cannot_be_used_here(tmp_path: Path) -> None:
    """A file is in the way, on the daemon's machine."""
    (tmp_path / "shared").write_text("")
    said = prove(Machine(), "bm1", HostTerms(tmp_path / "shared" / "c1", 1.0), lambda: 1000.0)
    assert said is not None
    assert "cannot be used on the daemon's machine" in said


def test_a_libvirt_without_storage_names_the_package(tmp_path: Path) -> None:
    """As where its parts are packages of their own."""
    machine = Machine()
    machine.errors["/run"] = failed(libvirt.VIR_ERR_NO_SUPPORT, "this function is not supported")
    assert "install it on bm1 (libvirt-daemon-driver-storage-core)" in verdict(machine, tmp_path)


def test_a_connection_that_is_lost_is_no_verdict(tmp_path: Path) -> None:
    """It is for the link to say that."""
    machine = Machine()
    machine.errors["/run"] = failed(libvirt.VIR_ERR_INVALID_CONN, "gone")
    with pytest.raises(libvirt.libvirtError):
        verdict(machine, tmp_path)


def test_what_a_daemon_has_left_in_the_middle_of_a_proof_is_removed(tmp_path: Path) -> None:
    """After an hour: another daemon may be at it just now."""
    left, fresh, theirs = (tmp_path / name for name in (".backfill-proof-1-a", ".backfill-proof-2-b", "vn1"))
    for path in (left, fresh, theirs):
        path.touch()
    os.utime(left, (time.time() - 7200,) * 2)
    assert prove(Machine(), "bm1", HostTerms(tmp_path, 1.0), lambda: 1000.0) is None
    assert {path.name for path in tmp_path.iterdir()} == {fresh.name, theirs.name}


class Attempts:
    """Proofs that end when the test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.says = ""
        self.tried = 0
        self.told: list[str] = []
        self._go_on, self._ended = threading.Semaphore(0), threading.Semaphore(0)
        self.proofs = HostProofs(self._attempt, self.told.append, lambda: self.now_s)

    def _attempt(self, host: str) -> str:
        self.tried += 1
        assert self._go_on.acquire(timeout=60)
        if self.says == "silent":
            raise UnreachableError(host, "no answer")
        return self.says

    def end(self, says: str) -> None:
        """Let the proof that is under way end like this."""
        self.says = says
        self._go_on.release()
        for thread in threading.enumerate():
            if thread.name == "proof-bm1":
                thread.join(60)

    def problem(self) -> str:
        return self.proofs.problem("bm1")


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


def test_a_host_is_unproven_until_its_proof_has_ended(attempts: Attempts) -> None:
    """Whoever asks does not wait, and a hint comes when there is news."""
    assert "just being proven" in attempts.problem()
    assert "just being proven" in attempts.problem()
    assert attempts.told == []
    attempts.end("")
    assert attempts.problem() == ""
    assert (attempts.tried, attempts.told) == (1, ["bm1"])


def test_a_bad_one_is_tried_again_soon_and_a_good_one_now_and_then(attempts: Attempts) -> None:
    """While it is tried again, what was found last counts."""
    attempts.problem()
    attempts.end("its clock is off")
    attempts.now_s = 19.0
    assert (attempts.problem(), attempts.tried) == ("its clock is off", 1)
    attempts.now_s = 20.0
    assert attempts.problem() == "its clock is off"
    attempts.end("")
    attempts.now_s = 619.0
    assert (attempts.problem(), attempts.tried) == ("", 2)
    attempts.now_s = 620.0
    assert attempts.problem() == ""
    attempts.end("its clock is off")
    assert attempts.problem() == "its clock is off"
    assert attempts.told == ["bm1"] * 3


def test_silence_is_no_proof(attempts: Attempts) -> None:
    """Nor is it the end of the trying."""
    attempts.problem()
    attempts.end("silent")
    assert attempts.problem() == "that could not be proven: no answer"
    attempts.now_s = 20.0
    attempts.problem()
    attempts.end("")
    assert attempts.problem() == ""


def test_a_host_that_was_out_of_reach_proves_itself_anew(attempts: Attempts) -> None:
    """It may have booted, and lack its mounts: the proof of before is worth nothing."""
    attempts.problem()
    attempts.end("")
    attempts.proofs.forget("bm1")
    assert "just being proven" in attempts.problem()
    attempts.end("")
    assert attempts.problem() == ""
    assert attempts.tried == 2


def test_at_the_end_proofs_take_back_what_they_made(attempts: Attempts) -> None:
    """No other begins; one that hangs is not waited for longer than asked."""
    attempts.problem()
    attempts.proofs.end(within_s=0.0)
    assert attempts.tried == 1
    assert "just being proven" in attempts.problem()
    ending = threading.Thread(target=attempts.proofs.end, args=(60.0,))
    ending.start()
    assert ending.is_alive()
    attempts.end("")
    ending.join(60)
    assert not ending.is_alive()
    attempts.now_s = 9999.0
    assert (attempts.problem(), attempts.tried) == ("", 1)
