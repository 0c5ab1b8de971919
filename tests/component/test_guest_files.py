"""The proof that a mount can be written, where users may write as well."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.component.guest_programs import proving_program

# Draws 1, 2, 3 and so on.
_DRAW = """
static long draw(void *to, size_t size, unsigned how) {
    static unsigned long long last;
    last++;
    memcpy(to, &last, size);
    return (long)(how ? 0 : size);
}

/* --- checks, each"""


@pytest.fixture(scope="module")
def prove(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with random numbers that can be foreseen, for mounts of any kind."""
    changes = (("getrandom(", "draw("), ("/* --- checks, each", _DRAW), ("fs.f_type != NFS_MAGIC", "0"))
    return proving_program(tmp_path_factory.mktemp("prove"), *changes)


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program whose files are refused with the error's number that its environment has."""
    changes = (
        ("fs.f_type != NFS_MAGIC", "0"),
        ("open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600)", '(errno = atoi(getenv("WHY")), -1)'),
    )
    return proving_program(tmp_path_factory.mktemp("refused"), *changes)


def names() -> Iterator[str]:
    """The names of its files, in the order in which it tries them."""
    return (f".backfill-{socket.gethostname()}-{number:016x}" for number in count(1))


def said(prove: Path, mount: Path) -> str:
    """What it says of the mount, without the time."""
    done = subprocess.run(
        [prove, "1700000000.0", f"mount={mount}"], capture_output=True, text=True, check=True
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("files:")]
    _, verdict, _, text = line.split(" ", 3)
    return f"{verdict} {text}".strip()


@pytest.mark.parametrize(("taken", "told"), [(0, "ok"), (2, "ok"), (16, "no cannot be written: File exists")])
def test_a_user_who_takes_names_keeps_no_node_from_its_proof(
    prove: Path, tmp_path: Path, taken: int, told: str
) -> None:
    """Another one is tried, though not for ever; what is there is left as it is."""
    theirs = [tmp_path / name for name, _ in zip(names(), range(taken), strict=False)]
    for path in theirs:
        path.write_text("mine")
    assert said(prove, tmp_path) == told
    assert sorted(tmp_path.iterdir()) == theirs
    assert {path.read_text() for path in theirs} <= {"mine"}


def test_every_mount_is_tried_however_many_there_are(prove: Path, tmp_path: Path) -> None:
    """And the gate of Salt behind them; of more than it can hold it says that, instead of an answer."""
    mounts = [f"mount={tmp_path / str(number)}" for number in range(200)]
    argv = [str(prove), "1700000000.0", *mounts[:40], "salt"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    checks = [line.split()[0] for line in done.stdout.splitlines() if " no " in line]
    assert checks == [*(f"files:{mount.removeprefix('mount=')}" for mount in mounts[:40]), "salt"]
    done = subprocess.run([str(prove), "1700000000.0", *mounts], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "backfill-prove: it cannot try more than 128 things\n"


def test_a_mount_that_refuses_is_told_at_once(prove: Path, tmp_path: Path) -> None:
    """Its reason is named."""
    assert said(prove, tmp_path / "none") == "no No such file or directory"
    assert said(prove, Path("/proc/self")).startswith("no cannot be written: ")


@pytest.mark.parametrize("why", [errno.EACCES, errno.EPERM])
def test_a_squashed_root_has_seen_a_server_that_answers(
    refused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """Users write to /home, which most sites export with root_squash; root need not."""
    monkeypatch.setenv("WHY", str(why))
    assert said(refused, tmp_path) == "ok it lets root write nothing there, as with root_squash"


@pytest.mark.parametrize("why", [errno.EROFS, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.EDQUOT])
def test_what_keeps_users_from_writing_is_a_fault(
    refused: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int
) -> None:
    """An export that is read-only, or a server in trouble."""
    monkeypatch.setenv("WHY", str(why))
    assert said(refused, tmp_path) == f"no cannot be written: {os.strerror(why)}"
