"""Runs the real tests file by file, several files at a time: they wait much more than they compute.

Each file runs in a process namespace and a mount namespace of its own. When its pytest ends, in
whatever way, or this program does, the kernel ends all that the file has started. What the kernel
would keep (control groups, files) has the run's own directory in its name: at the end nothing with
that name may be left, or the run has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from backfill.lab import cgroups
from backfill.lab.waiting import wait_until

ROOT = Path(__file__).parents[2]
GATE = "real and not soak"
# How long each group took on some machine, for the order of the first run in a checkout.
_TYPICAL = Path(__file__).with_name("durations.json")
_UNKNOWN_S = 120.0
# So many files are always at work, whatever else the machine does; and so many at most. In between,
# another one begins while processors idle: too many at once would make each other late.
LEAST, MOST = 4, 8
_SPARE, _LOOK_S = 0.15, 3.0
# One that takes longer hangs.
_LIMIT_S = 3600.0
_USES_CLOUD = re.compile(r"\b(clouds|tenant|running_cloud|cloud_entered)\b")
_ALL_MARKED = re.compile(r"^pytestmark = \[([^\]]*)\]", re.MULTILINE)
_CLOUD = "cloud"
# Whose files take turns in one cloud; each has a cloud of its own, which costs half a minute.
CLOUDS = 2
_NOTHING_COLLECTED = 5
_END_S = 60.0
_KEPT = "kept"


@dataclass(frozen=True, slots=True)
class Group:
    """Files whose tests run one after the other in one process."""

    name: str
    files: tuple[str, ...]


@dataclass(slots=True)
class Running:
    """A group at work: its process, what it writes, and when it began."""

    group: Group
    process: subprocess.Popen[bytes]
    home: Path
    began_s: float
    cpu_s: float = 0.0

    def output(self) -> str:
        return (self.home / "output").read_text(errors="replace")


def groups(
    files: Iterable[Path], marks: str = "", durations: Mapping[str, float] | None = None
) -> list[Group]:
    """Each file by itself; but the users of a test cloud take turns in one of `CLOUDS`."""
    found: list[Group] = []
    cloud: list[Path] = []
    for file in files:
        text = file.read_text()
        if "pytest.mark.real" not in text or _none_of(text, marks):
            continue
        if _USES_CLOUD.search(text):
            cloud.append(file)
        else:
            found.append(Group(_name(file), (str(file),)))
    return found + _dealt(cloud, durations or {})


def _none_of(text: str, marks: str) -> bool:
    """All tests of the file have a mark that is not wanted."""
    found = _ALL_MARKED.search(text)
    of_all = re.findall(r"pytest\.mark\.(\w+)", found[1]) if found else []
    return any(f"not {mark}" in marks for mark in of_all)


def _dealt(files: Sequence[Path], durations: Mapping[str, float]) -> list[Group]:
    """The longest file first, always to the cloud that has least to do; one cloud if it is given."""
    clouds = 1 if "BACKFILL_TEST_CLOUD" in os.environ else CLOUDS
    shares: list[tuple[float, list[str]]] = [(0.0, []) for _ in range(min(clouds, len(files)))]
    for file in sorted(files, key=lambda one: durations.get(_name(one), 0.0), reverse=True):
        load_s, share = min(shares, key=lambda one: one[0])
        shares.remove((load_s, share))
        shares.append((load_s + durations.get(_name(file), 0.0), [*share, str(file)]))
    shares.sort(key=lambda one: one[0], reverse=True)
    names = (_CLOUD if at == 1 else f"{_CLOUD}_{at}" for at in range(1, CLOUDS + 1))
    return [Group(name, tuple(sorted(share))) for name, (_, share) in zip(names, shares, strict=False)]


def _name(file: Path) -> str:
    return file.stem.removeprefix("test_")


def in_order(found: Sequence[Group], durations: Mapping[str, float]) -> list[Group]:
    """Longest first; of what is not known, which is rarely the longest, the longest text first."""

    def key(group: Group) -> tuple[float, int]:
        size = sum((ROOT / file).stat().st_size for file in group.files)
        return durations.get(group.name, _UNKNOWN_S), size

    return sorted(found, key=key, reverse=True)


class Side:
    """One run: groups beside each other below `home`."""

    def __init__(self, home: Path, marks: str, extra: Sequence[str] = (), limit_s: float = _LIMIT_S) -> None:
        self.home = home
        self.marks = marks
        self.extra = extra
        self.limit_s = limit_s
        self._running: list[Running] = []

    def begin(self, group: Group) -> None:
        home = self.home / group.name
        home.mkdir()
        # A short path: sockets are made below it, and their names may have 107 characters.
        environ = os.environ | {"BACKFILL_LAB_ROOT": str(home / "l"), "TMPDIR": str(home)}
        argv = [
            # The group ends with this program, and all in its namespaces with their first process,
            # which is a shell: it collects orphans that have ended.
            "setpriv",
            "--pdeathsig",
            "KILL",
            "--",
            "unshare",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
            "--",
            "sh",
            "-c",
            '"$@"; exit $?',
            "sh",
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-m",
            self.marks,
            "--durations=10",
            "-o",
            f"cache_dir={ROOT}/.pytest_cache/{group.name}",
            f"--basetemp={home / 't'}",
            *self.extra,
            *group.files,
        ]
        with (home / "output").open("wb") as output:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=ROOT,
                env=environ,
                start_new_session=True,
            )
        self._running.append(Running(group, process, home, time.monotonic()))

    def ended(self, within_s: float) -> Running | None:
        """Wait for the next group to end."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            for one in self._running:
                if time.monotonic() - one.began_s > self.limit_s:
                    one.process.kill()
                before_s = _children_s()
                if one.process.poll() is not None:
                    one.cpu_s = _children_s() - before_s
                    self._running.remove(one)
                    return one
            time.sleep(0.1)
        return None

    def __len__(self) -> int:
        return len(self._running)

    def kill(self) -> None:
        """End all groups at once."""
        for one in self._running:
            one.process.kill()
        for one in self._running:
            one.process.wait()
        self._running.clear()


def leftovers(home: Path) -> list[str]:
    """Processes, mounts and control groups that name `home`; other runs' are not looked at."""
    others = [p for p in Path("/proc").glob("[0-9]*") if int(p.name) != os.getpid()]
    found = [f"process {p.name}: {_command(p)}" for p in others if _names(p, home)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found += [f"mount {line.split()[4]}" for line in mounts if f"{home}/" in line]
    for made in _labs(home):
        found += [f"control group {top}" for top in cgroups.lab_directories(made) if top.exists()]
    return found


def _labs(home: Path) -> list[Path]:
    return [spec.parent for spec in home.rglob("spec.json")]


def _names(process: Path, home: Path) -> bool:
    """In its command line, its environment or its control group."""
    marks = (os.fsencode(f"{home}/"),)
    for name in ("cmdline", "environ", "cgroup"):
        try:
            told = (process / name).read_bytes()
        except OSError:
            continue
        if any(mark in told for mark in marks):
            return True
    return False


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    except OSError:
        return "(ended)"


def sweep(home: Path) -> None:
    """Remove the control groups of labs that were killed with their watchers."""
    for made in _labs(home):
        cgroups.sweep(made)


def watch_over(home: Path) -> None:
    """Fork a process that clears up after this one where this one cannot: after a SIGKILL."""
    mine = os.pidfd_open(os.getpid())
    if os.fork():
        os.close(mine)
        return
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)  # whoever reads what we write shall not wait for us
    select.select([mine], [], [])
    try:
        if home.exists() and not (home / _KEPT).exists():
            wait_until(lambda: not [one for one in leftovers(home) if "process" in one], _END_S)
            sweep(home)
            shutil.rmtree(home, ignore_errors=True)
    finally:
        os._exit(0)


def _children_s() -> float:
    """What processes that were waited for, and those that they waited for, have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Meter:
    """How much of the processors' time has passed idle since it was last read."""

    def __init__(self) -> None:
        self._idle, self._all = self._ticks()

    def read(self) -> float:
        """From 0 to 1."""
        idle, everything = self._ticks()
        share = (idle - self._idle) / max(1, everything - self._all)
        self._idle, self._all = idle, everything
        return share

    @staticmethod
    def _ticks() -> tuple[int, int]:
        words = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        ticks = [int(word) for word in words]
        return ticks[3] + ticks[4], sum(ticks)


class Room:
    """Whether another group may begin: `least` always may, and up to `most` where there is time."""

    def __init__(self, least: int, most: int, idle: Callable[[], float]) -> None:
        self.least = min(least, most)
        self.most = most
        self._idle = idle
        self._looked_s = float("-inf")

    def for_another(self, running: int, now_s: float) -> bool:
        """Ask again and again; what has just begun is given time to show what it needs."""
        if running >= self.most:
            return False
        if running < self.least:
            self._look(now_s)
            return True
        return now_s - self._looked_s >= _LOOK_S and self._look(now_s) > _SPARE

    def _look(self, now_s: float) -> float:
        self._looked_s = now_s
        return self._idle()


def durations_file(marks: str) -> Path:
    """Where runs of this checkout note how long each group took, in seconds."""
    return ROOT / ".pytest_cache" / f"durations-{marks.replace(' ', '-')}.json"


def _remembered(marks: str) -> dict[str, float]:
    return _noted(_TYPICAL) | _noted(durations_file(marks))


def _noted(path: Path) -> dict[str, float]:
    with suppress(FileNotFoundError, ValueError):
        noted: dict[str, float] = json.loads(path.read_text())
        return noted
    return {}


def _remember(marks: str, took: Mapping[str, float]) -> None:
    """Note what was measured with these marks, and nothing else: `soak_list` tells it."""
    path = durations_file(marks)
    durations = {**_noted(path), **took}
    path.parent.mkdir(exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_text(json.dumps(dict(sorted(durations.items())), indent=1))
    fresh.rename(path)


def passed(status: int, output: str, named: bool) -> bool:
    """Whether a group has done what it was begun for.

    All tests of a file may be for other runs, which its text does not tell. Whoever named it wanted some.
    """
    if status == _NOTHING_COLLECTED:
        return not named and "deselected" in output
    return status == 0


def unwanted(files: Iterable[Path], found: Iterable[Group]) -> list[str]:
    """Those of these files that are in no group."""
    begun = {file for group in found for file in group.files}
    return [str(file) for file in files if str(file) not in begun]


def play(side: Side, waiting: list[Group], room: Room, named: bool = False) -> list[str]:
    """Run all groups; the names of those that failed. What a failed one wrote is shown.

    `named`: somebody asked for these very files.
    """
    durations = _remembered(side.marks)
    took: dict[str, float] = {}
    waiting = in_order(waiting, durations)
    total, failed = len(waiting), []
    began_s, meter = time.monotonic(), Meter()
    most = 0
    while waiting or len(side):
        if waiting and room.for_another(len(side), time.monotonic()):
            side.begin(waiting.pop(0))
            most = max(most, len(side))
            continue
        ended = side.ended(_LOOK_S)
        if ended is None:
            continue
        name, took_s = ended.group.name, time.monotonic() - ended.began_s
        done = total - len(waiting) - len(side)
        fine = passed(ended.process.returncode, ended.output(), named)
        _tell(ended, f"[{done}/{total}]", fine)
        if fine:
            took[name] = round(took_s, 1)
        else:
            failed.append(name)
    _remember(side.marks, took)
    longest = sorted(((took_s, name) for name, took_s in took.items()), reverse=True)[:8]
    sys.stdout.write(
        f"{total} groups, up to {most} at a time, in {time.monotonic() - began_s:.0f} s; "
        f"the processors idled {100 * meter.read():.0f} %; load {os.getloadavg()[0]:.1f}\n"
        f"longest: {', '.join(f'{name} {took_s:.0f} s' for took_s, name in longest)}\n"
    )
    return failed


def _tell(ended: Running, mark: str, fine: bool) -> None:
    output = ended.output()
    said = (output.splitlines() or ["nothing was written"])[-1].strip("= ")
    name = ended.group.name
    if fine:
        sys.stdout.write(f"{mark} {name}: {said}; {ended.cpu_s:.0f} CPU s\n")
    else:
        sys.stdout.write(f"{output}\n{mark} {name}: FAILED ({ended.process.returncode}): {said}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("files", nargs="*", type=Path, help="all that have real tests if left out")
    parser.add_argument("--least", type=int, default=LEAST, metavar="N", help="at once, always")
    parser.add_argument("--most", type=int, default=MOST, metavar="N", help="while there is time")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="after which a file hangs")
    parser.add_argument("--marks", default=GATE, help="which tests: pytest's -m")
    parser.add_argument("--pytest", action="append", default=[], metavar="OPTION")
    given = parser.parse_args()
    if missing := [str(file) for file in given.files if not file.is_file()]:
        parser.error(f"{', '.join(missing)}: there is no such file; name one of tests/real or tests/contract")
    files = given.files or sorted(
        path.relative_to(ROOT)
        for folder in ("tests/real", "tests/contract")
        for path in (ROOT / folder).glob("test_*.py")
    )
    found = groups(files, given.marks, _remembered(given.marks))
    if none := unwanted(given.files, found):
        parser.error(f"{', '.join(none)}: no test there is '{given.marks}'; choose others by --marks")
    home = Path(tempfile.mkdtemp(prefix="bt-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    home.chmod(0o755)
    watch_over(home)
    side = Side(home, given.marks, given.pytest, given.limit_s)
    room = Room(given.least, given.most, Meter().read)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        failed = play(side, found, room, named=bool(given.files))
    except KeyboardInterrupt:
        side.kill()
        sweep(home)
        shutil.rmtree(home, ignore_errors=True)
        return 130
    return judge(home, failed)


def judge(home: Path, failed: Sequence[str]) -> int:
    """The exit status; nothing of the run may be left, but for the files of one that failed."""
    # A lab's watcher may still be at work for a moment; when nobody is, nothing more goes away.
    wait_until(lambda: not [one for one in leftovers(home) if one.startswith("process ")], _END_S)
    left = leftovers(home)
    sweep(home)
    for trace in left:
        sys.stdout.write(f"LEFT BEHIND: {trace}\n")
    if failed or left:
        (home / _KEPT).touch()
        sys.stdout.write(f"FAILED: {', '.join(failed) or 'something was left'}; logs: {home}\n")
        return 1
    shutil.rmtree(home)
    return 0


def _stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
