"""Slurm's own key in guests: read as it is now, put where Slurm looks for it, handed on when it changes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import Instance, InstanceState, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.guest.keys import KeyHandover, key_place, read_key
from backfill.drivers.libvirt.settings import Surroundings
from backfill.ports.errors import RefusedError, UnreachableError
from tests.component.guest_programs import GUEST, proving_program

RUNNING = Instance("vn1", "bm1", InstanceState.RUNNING, Tag("grete", "vn1", 1), Resources(1, 256))


def around(key: Path) -> Surroundings:
    return Surroundings("10.0.0.1", "10.0.0.1:6817", "", slurm_key=str(key))


class Guests:
    """Guests that are given keys; `deaf` ones do not answer."""

    def __init__(self, key: Path) -> None:
        self.had: list[tuple[str, str, bytes]] = []
        self.deaf = False
        self.asked = threading.Semaphore(0)
        self.busy: list[str] = []  # the hosts of those that are just being asked
        self.hold = threading.Event()
        self.hold.set()
        self.now_s = 0.0
        self.handover = KeyHandover(lambda: read_key(around(key)), self.give, lambda: self.now_s)

    def give(self, host: str, name: str, key: bytes) -> None:
        self.busy.append(host)
        self.asked.release()
        self.hold.wait(60)
        self.busy.remove(host)
        if self.deaf:
            raise UnreachableError(name, "its guest agent did not answer")
        self.had.append((host, name, key))

    def look(self, *instances: Instance) -> None:
        """Look, and wait for what that began."""
        self.now_s += 60
        self.handover.look("bm1", instances)
        self.wait()

    def wait(self) -> None:
        """Wait for all that has begun."""
        for thread in threading.enumerate():
            if thread.name.startswith("key-"):
                thread.join()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "slurm.jwks"
    path.write_bytes(b"one")
    return path


def test_each_kind_of_key_has_its_place() -> None:
    """Slurm knows a set of keys by the file's name."""
    assert key_place(Surroundings("", "", "/etc/munge/munge.key")) == "/etc/munge/munge.key"
    assert key_place(around(Path("/srv/keys/cluster.jwks"))) == "/etc/slurm/slurm.jwks"
    assert key_place(around(Path("/etc/slurm/slurm.key"))) == "/etc/slurm/slurm.key"


def test_a_key_that_cannot_be_is_refused(key: Path) -> None:
    key.write_bytes(b"")
    with pytest.raises(RefusedError, match="Slurm's key is empty"):
        read_key(around(key))
    key.unlink()
    with pytest.raises(RefusedError, match="cannot read Slurm's key: No such file"):
        read_key(around(key))


def test_a_guest_is_given_each_key_once(key: Path) -> None:
    guests = Guests(key)
    guests.look(RUNNING)
    guests.look(RUNNING)
    assert guests.had == [("bm1", "vn1", b"one")]
    key.write_bytes(b"two")
    guests.look(RUNNING)
    assert guests.had[1:] == [("bm1", "vn1", b"two")]


def test_one_that_stands_still_is_left_in_peace(key: Path) -> None:
    """It gets the key with the first question that is asked of it when it is back."""
    guests = Guests(key)
    guests.look(replace(RUNNING, state=InstanceState.PAUSED))
    assert guests.had == []


def test_another_guest_of_the_name_is_another_guest(key: Path) -> None:
    guests = Guests(key)
    guests.look(RUNNING)
    guests.look(replace(RUNNING, tag=Tag("grete", "vn1", 2)))
    assert len(guests.had) == 2


def test_one_that_does_not_answer_is_tried_again(key: Path) -> None:
    """Later: it may boot still."""
    guests = Guests(key)
    guests.deaf = True
    guests.look(RUNNING)
    guests.deaf = False
    guests.now_s -= 60
    guests.look(RUNNING)
    assert guests.had == []
    guests.look(RUNNING)
    assert guests.had == [("bm1", "vn1", b"one")]


def test_silent_guests_take_few_threads_and_one_of_their_host(key: Path) -> None:
    """Agents that answer nobody hold up libvirtd as well: a pause must get through beside them."""
    guests = Guests(key)
    guests.hold.clear()
    hosts = [f"bm{number}" for number in range(1, 21)]
    three = [replace(RUNNING, name=name) for name in ("vn1", "vn2", "vn3")]
    for now_s in (60, 120):
        guests.now_s = now_s
        for host in hosts:
            guests.handover.look(host, three)
    assert all(guests.asked.acquire(timeout=60) for _ in range(8))
    assert sum(thread.name.startswith("key-") for thread in threading.enumerate()) == 8
    assert sorted(guests.busy) == sorted(hosts[:8])
    guests.hold.set()
    guests.wait()
    assert sorted(guests.had) == sorted((host, one.name, b"one") for host in hosts for one in three)


def test_without_a_key_nobody_is_given_one(key: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once."""
    guests = Guests(key)
    key.unlink()
    guests.look(RUNNING)
    guests.look(RUNNING)
    assert guests.had == []
    assert len(caplog.records) == 1


@pytest.fixture(scope="module")
def prove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return proving_program(tmp_path_factory.mktemp("prove"))


def proven(prove: Path, place: Path, key: bytes) -> str:
    """What the program says of the key."""
    argv = [str(prove), "1700000000.0", f"key={place}"]
    said = subprocess.run(argv, input=key, capture_output=True, check=True).stdout.decode()
    (line,) = [line for line in said.splitlines() if line.startswith("key ")]
    return re.sub(r" \d+\.\d+ ?", " ", line).strip()


def test_a_guest_that_comes_back_has_the_key_of_now(prove: Path, tmp_path: Path) -> None:
    """Before anything else is asked of it; one that it has already is left as it is."""
    place = tmp_path / "slurm.jwks"
    assert proven(prove, place, b"one") == "key ok it is new"
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"one", 0o400)
    before = place.stat()
    assert proven(prove, place, b"one") == "key ok"
    assert place.stat().st_ino == before.st_ino
    assert proven(prove, place, b"two" * 5000) == "key ok it is new"
    assert place.read_bytes() == b"two" * 5000
    assert proven(prove, tmp_path / "none/slurm.jwks", b"one") == "key no No such file or directory"
    assert proven(prove, place, b"") == "key no No data available"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["slurm.jwks"]


def test_the_key_program_puts_slurms_key_where_it_is_told(tmp_path: Path) -> None:
    """Twice is fine, and nothing of it is for others."""
    program = GUEST / "backfill-key"
    place = tmp_path / "slurm.jwks"
    script = program.read_text().replace("/run/slurmd.pid", str(tmp_path / "none"))
    for key in (b"one", b"one", b"two"):
        subprocess.run(["sh", "-c", script, "sh", str(place)], input=key, check=True)
        assert (place.read_bytes(), place.stat().st_mode & 0o777) == (key, 0o400)
    done = subprocess.run(["sh", "-c", script, "sh", str(place)], input=b"", capture_output=True, check=False)
    assert (done.returncode, place.read_bytes()) == (1, b"two")
    assert [path.name for path in tmp_path.iterdir()] == ["slurm.jwks"]


# Waits for a line before it catches the signal, as a slurmd does that is just starting.
_STARTING = """
import signal, sys
print("up", flush=True)
sys.stdin.readline()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])  # it comes after the line, not in it
signal.signal(signal.SIGHUP, lambda *_: print("called", flush=True))
print("catches", flush=True)
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGHUP])
sys.stdin.read()
"""


class Slurmd:
    """A program in slurmd's place, whose process is where slurmd's would be."""

    def __init__(self, folder: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-c", _STARTING], stdin=pipe, stdout=pipe, text=True, bufsize=1
        )
        (folder / "slurmd.pid").write_text(f"{self.process.pid}\n")
        assert self.says() == "up"

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def catches(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        assert self.says() == "catches"

    def end(self) -> int:
        self.process.communicate()
        return self.process.returncode


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the guest's programs do about slurmd, and the folder where its process is told."""
    folder = tmp_path_factory.mktemp("call")
    text = (GUEST / "slurmd.h").read_text().replace("/run/slurmd.pid", str(folder / "slurmd.pid"))
    main = "#include <stdlib.h>\nint main(int c, char **v) { return c != 2 || call_slurmd(atof(v[1])); }\n"
    (folder / "call.c").write_text(text + main)
    subprocess.run(
        ["gcc", "-Wall", "-Werror", "-o", str(folder / "call"), str(folder / "call.c")], check=True
    )
    return folder / "call"


def test_a_slurmd_that_starts_is_not_ended_by_being_called(call: Path) -> None:
    """A signal that it does not catch yet would end it: then it reports by itself."""
    slurmd = Slurmd(call.parent)
    assert subprocess.run([str(call), "0"], check=False).returncode == 0
    slurmd.catches()
    assert subprocess.run([str(call), "0"], check=False).returncode == 0
    assert slurmd.says() == "called"
    assert slurmd.end() == 0
    assert subprocess.run([str(call), "0"], check=False).returncode == 1


@pytest.mark.parametrize("program", ["call", "key"])
def test_one_that_has_to_read_something_is_waited_for(call: Path, tmp_path: Path, program: str) -> None:
    """Until it catches the signal, which it then gets."""
    slurmd = Slurmd(call.parent)
    script = (GUEST / "backfill-key").read_text()
    script = script.replace("/run/slurmd.pid", str(call.parent / "slurmd.pid"))
    script = script.replace("sleep 0.1", f"echo >>{shlex.quote(str(tmp_path / 'waited'))}; sleep 0.1")
    argv = {"call": [str(call), "60"], "key": ["sh", "-c", script, "sh", str(tmp_path / "jwks")]}[program]
    (tmp_path / "key").write_text("new")
    with (tmp_path / "key").open() as key:
        waiting = subprocess.Popen(argv, stdin=key)
    if program == "key":
        while not (tmp_path / "waited").exists():
            assert waiting.poll() is None
    slurmd.catches()
    assert slurmd.says() == "called"
    assert waiting.wait() == 0
    assert slurmd.end() == 0
