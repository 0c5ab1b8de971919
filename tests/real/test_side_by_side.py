"""Whatever ends a run of the real tests, nothing of it is left; what stays is found by its name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backfill.lab import cgroups
from backfill.lab.waiting import wait_until
from tests.real.leftovers import held_open, holders
from tests.real.side_by_side import ROOT, judge, leftovers

pytestmark = pytest.mark.real
PATIENCE_S = 600.0  # for what takes seconds on a machine that is not busy
# It starts a lab, mounts something, and leaves a process behind that nobody is the parent of.
_BUSY = """
import os, subprocess, time
from pathlib import Path
import pytest
from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec

pytestmark = pytest.mark.real

def test_that_leaves_much(tmp_path: Path) -> None:
    lab = Lab.up(LabSpec(name="busy", hosts=1, hypervisor="none"), tied=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True)
    subprocess.run(["setsid", "--fork", "sleep", "86400"], check=True)
    Path(os.environ["TOLD"]).write_text(str(lab.dir))
    {end}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that a lab's users can enter, which pytest's own are not."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    yield made
    # In one go: who watches over a run that has failed would take the rest of its files, without the
    # mark that they are kept, for those of a run that was killed.
    gone = made.with_name(f"{made.name}-gone")
    made.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def run(folder: Path, end: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A run of one file, whose test does `end` when all stands; and the run's own directory."""
    file, told = folder / "test_busy.py", folder / "told"
    file.write_text(_BUSY.format(end=end))
    environ = os.environ | {"TMPDIR": str(folder), "TOLD": str(told)}
    argv = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.real.side_by_side"]
    with subprocess.Popen(
        [*argv, "--pytest=-s", str(file)], cwd=ROOT, env=environ, text=True, stdout=subprocess.PIPE
    ) as running:
        assert wait_until(lambda: told.exists() or running.poll() is not None, PATIENCE_S)
        assert running.poll() is None, running.communicate()
        (home,) = folder.glob("bt-*")
        yield running, home
        running.kill()


def pytest_of(home: Path) -> tuple[int, list[str]]:
    """The pytest of the run, as seen from here, and the namespaces of all that it started."""
    found, spaces = 0, set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(f"BACKFILL_LAB_ROOT={home}/") in environ and b"setpriv" not in words[0]:
            spaces |= {str(process / "ns" / kind) for kind in ("pid", "mnt")}
            if words[1:3] == [b"-m", b"pytest"]:
                found = int(process.name)
    assert found
    return found, sorted(spaces)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_interrupted_leaves_nothing(folder: Path, number: signal.Signals) -> None:
    """Neither processes nor namespaces, control groups or files."""
    with run(folder, "time.sleep(86400)") as (running, home):
        assert leftovers(home)
        groups = cgroups.lab_directories(Path((folder / "told").read_text()))
        with held_open(pytest_of(home)[1]) as spaces:
            assert holders(spaces)
            running.send_signal(number)
            assert running.wait(PATIENCE_S) != 0
            assert wait_until(lambda: not holders(spaces), PATIENCE_S), holders(spaces)
        assert wait_until(lambda: not home.exists(), PATIENCE_S), leftovers(home)
    assert [group for group in groups if group.exists()] == []


def test_a_pytest_that_is_killed_leaves_nothing_but_its_logs(folder: Path) -> None:
    """The run goes on to its end, and has failed."""
    with run(folder, "time.sleep(86400)") as (running, home):
        pytest_pid, places = pytest_of(home)
        with held_open(places) as spaces:
            os.kill(pytest_pid, signal.SIGKILL)
            shown, _ = running.communicate(timeout=PATIENCE_S)
            assert running.returncode == 1
            assert wait_until(lambda: not holders(spaces), PATIENCE_S), holders(spaces)
        assert "busy: FAILED" in shown
        assert leftovers(home) == []


def test_what_is_left_is_found_and_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Process, mount and control group that have the run's name; others' are not looked at."""
    monkeypatch.setattr("tests.real.side_by_side._END_S", 0.1)
    home, other = tmp_path / "bt-1", tmp_path / "bt-10"
    for place in (home, other):
        (place / "l/lab").mkdir(parents=True)
        (place / "l/lab/spec.json").touch()
    with (
        subprocess.Popen(["sleep", "86400"], env={"TMPDIR": f"{home}/t"}) as mine,
        subprocess.Popen(["sleep", "86400"], env={"TMPDIR": f"{other}/t"}) as theirs,
    ):
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(home / "l")], check=True)
        try:
            (home / "l/lab").mkdir()
            (home / "l/lab/spec.json").touch()
            made = () if cgroups.usable() else cgroups.make(home / "l/lab", "bm1")
            assert leftovers(home) == [
                f"process {mine.pid}: sleep 86400 ",
                f"mount {home / 'l'}",
                *(f"control group {group.parent}" for group in made),
            ]
            assert judge(home, []) == 1
            assert f"LEFT BEHIND: mount {home / 'l'}" in capsys.readouterr().out
            # The groups are swept, so that one failure does not become the next one's.
            assert not [group for group in made if group.exists()]
        finally:
            subprocess.run(["umount", str(home / "l")], check=True)
            mine.kill()
            mine.wait()
        assert judge(home, ["some"]) == 1
        assert leftovers(other)
        assert judge(home, []) == 0
        assert not home.exists()
        theirs.kill()
