"""backfill-root on this machine's kernel: what it runs, as whom, and what it refuses with one sentence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from backfill.drivers.libvirt.guest.seed import own_root_text
from backfill.lab.guestroot import compile_program
from tests.real.own_root import MOST_MB, OWNER, SPOILT, make_root

pytestmark = pytest.mark.real


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that every user may look into."""
    made = tmp_path_factory.mktemp("own-root")
    for path in (made, *made.parents[:2]):
        path.chmod(0o755)
    return made


def run_as(user: int, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, capture_output=True, text=True, check=False, user=user, group=user, extra_groups=[], cwd="/tmp"
    )


class Program:
    """The program, by rules of its own."""

    def __init__(self, place: Path) -> None:
        self.rules, self.seen = place / "rules", place / "home"
        self.seen.mkdir()
        self.rules.write_bytes(own_root_text(MOST_MB, [f"server:/home {self.seen} nfs4 rw"]))
        self._file = compile_program("root", place, f'-DRULES="{self.rules}"')
        self.tree = make_root(place / "tree", str(self.seen)[1:])

    def run(self, *command: str, user: int = OWNER) -> subprocess.CompletedProcess[str]:
        return run_as(user, str(self._file), str(self.tree), *command)

    def script(self, text: str) -> Path:
        """A script whose first line names the program."""
        path = self._file.with_name("job.sh")
        path.write_text(f"#!{self._file} {self.tree}\n{text}")
        path.chmod(0o755)
        return path


@pytest.fixture
def program(place: Path) -> Program:
    return Program(place)


def test_a_command_runs_in_the_tree_as_its_caller(program: Program) -> None:
    """With his number, nothing that makes him more, the tree read-only, and what is shown inside."""
    (program.seen / "data").write_text("seen\n")
    inside = f"id -u; cat /etc/release {program.seen}/data; touch /etc/new; mount -t tmpfs none /etc; exit 3"
    done = program.run("sh", "-c", inside)
    assert done.stdout.split() == [str(OWNER), "root6", "seen"]
    assert "Read-only file system" in done.stderr
    assert "permission denied" in done.stderr
    assert done.returncode == 3
    powers = program.run("cat", "/proc/self/status").stdout
    assert "CapEff:\t0000000000000000" in powers
    assert "CapPrm:\t0000000000000000" in powers
    assert "NoNewPrivs:\t1" in powers


def test_nothing_of_the_machine_is_seen_besides(program: Program) -> None:
    """No directory of its own root, and no way back to it."""
    done = program.run("ls", "/", "/..", "/proc/1/root")
    there = {"/:", "/..:", "bin", "etc", "dev", "proc", "sys", "tmp", program.seen.parts[1]}
    assert set(done.stdout.split()) <= there
    assert "/proc/1/root" in done.stderr


def test_a_script_whose_first_line_names_it_runs_there(program: Program) -> None:
    """With its arguments, by the tree's own shell; its end is the script's."""
    done = run_as(OWNER, str(program.script("cat /etc/release; echo $1; exit 4\n")), "word")
    assert (done.stdout.split(), done.returncode) == (["root6", "word"], 4)


@pytest.mark.parametrize("how", SPOILT)
def test_a_tree_that_is_not_his_alone_is_refused(program: Program, how: str) -> None:
    """By one sentence, with a status of its own; nothing was run."""
    spoil, said = SPOILT[how]
    spoil(program.tree)
    done = program.run("sh", "-c", "echo ran")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert (done.stdout, done.returncode) == ("", 125)


def test_root_has_none(program: Program) -> None:
    """Root of a guest is an administrator of the cluster: no tree of a user's is ever run as root."""
    done = program.run("sh", "-c", "echo ran", user=0)
    assert (done.stdout, done.returncode) == ("", 125)
    assert "for users alone" in done.stderr


@pytest.mark.parametrize("rules", ["", "0\n", "many\n", None])
def test_none_runs_where_the_site_allows_none(program: Program, rules: str | None) -> None:
    if rules is None:
        program.rules.unlink()
    else:
        program.rules.write_text(rules)
    done = program.run("sh", "-c", "echo ran")
    assert (done.stdout, done.returncode) == ("", 125)


def test_rules_that_a_user_could_have_written_are_none(program: Program) -> None:
    program.rules.chmod(0o666)
    done = program.run("sh", "-c", "echo ran")
    assert (done.stdout, done.returncode) == ("", 125)
    assert "not root's alone" in done.stderr
