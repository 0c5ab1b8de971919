"""The fence of a guest, on processes and control groups that are files of this test."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.component.guest_programs import GUEST

JOB = 7


class MadeGuest:
    """A guest with a job of so many processes, and the fence that looks at it."""

    def __init__(self, folder: Path, processes: int, fence: Path) -> None:
        self._folder, self._fence = folder, fence
        self.group = folder / f"cgroup/job_{JOB}"
        self.group.mkdir(parents=True)
        (self.group / "cgroup.freeze").write_text("")
        for pid in range(1000, 1000 + processes):
            self._process(pid)

    def _process(self, pid: int) -> None:
        place = self._folder / f"proc/{pid}"
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} (python) S 1 {pid}\n")
        (place / "status").write_text("Name:\tpython\nUid:\t2001\t2001\t2001\t2001\n")
        (place / "cgroup").write_text(f"0::/job_{JOB}/step_0\n")

    def hold(self) -> subprocess.CompletedProcess[str]:
        """Let it hold the job, in this guest's folder."""
        return subprocess.run(
            [str(self._fence), "hold"], cwd=self._folder, capture_output=True, text=True, check=False
        )


def compiled(folder: Path, *changes: tuple[str, str]) -> Path:
    """Compile the fence for a guest that is its working directory, with little room for processes."""
    here = (('"/proc', '"proc'), ('"/sys/fs/cgroup', '"cgroup'), ("FIRST_ROOM = 1024", "FIRST_ROOM = 8"))
    text = (GUEST / "fence.c").read_text()
    for old, new in (*here, *changes):
        assert old in text
        text = text.replace(old, new)
    (folder / "fence.c").write_text(text)
    argv = ["gcc", "-O2", "-Wall", "-Werror", "-o", str(folder / "fence")]
    subprocess.run([*argv, str(folder / "fence.c"), "-lm"], check=True)
    return folder / "fence"


@pytest.fixture(scope="module")
def fence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fence, compiled once for all of these guests."""
    return compiled(tmp_path_factory.mktemp("fence"))


@pytest.mark.parametrize("processes", [1, 8, 10, 40])
def test_no_process_of_a_job_is_left_out(tmp_path: Path, fence: Path, processes: int) -> None:
    """However many there are: one that is not held would run on."""
    guest = MadeGuest(tmp_path, processes, fence)
    done = guest.hold()
    assert (done.returncode, done.stdout, done.stderr) == (0, f"held {JOB} {processes}\n", "")
    assert (guest.group / "cgroup.freeze").read_text() == "1"


def test_without_memory_for_all_nothing_is_believed_held(tmp_path: Path) -> None:
    """Where the table cannot grow, the fence says so and fails."""
    no_memory = ("realloc(seen, ", "room ? (errno = ENOMEM, NULL) : malloc(")
    done = MadeGuest(tmp_path, 10, compiled(tmp_path, no_memory)).hold()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "backfill-fence: no memory for all processes: Cannot allocate memory\n"
