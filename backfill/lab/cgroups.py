"""The lab's control groups (version 1): made per machine, swept away when the lab is gone."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

CONTROLLERS = ("cpu", "cpuacct")
# A machine with systemd as its first process has all of them to itself.
_ALL = (*CONTROLLERS, "cpuset", "memory", "devices", "freezer", "blkio", "pids")
SYSTEMD, UNIFIED = "systemd", "unified"
BASE = Path("/sys/fs/cgroup")
# The controller stands for a machine with processors of its own, so guests must not starve it.
CONTROLLER_SHARES = 10240
_ANY = "backfill-lab-*"
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h, PROC_PID_INIT_INO


def usable() -> str | None:
    """Return one sentence with why control groups cannot be used; None: they can."""
    for controller in CONTROLLERS:
        if not (BASE / controller / "cgroup.procs").exists():
            return f"no version 1 control group '{controller}' is mounted under {BASE}"
        if not os.access(BASE / controller, os.W_OK):
            return f"{BASE / controller} cannot be written"
    return None


def hierarchies() -> tuple[str, ...]:
    """Return the hierarchies that this machine has: controllers, systemd's own, and version 2's."""
    return tuple(name for name in (*_ALL, SYSTEMD, UNIFIED) if (BASE / name / "cgroup.procs").exists())


def missing_for_systemd() -> str | None:
    """Return one sentence with what keeps systemd from running in groups of ours, or None."""
    missing = {*_ALL, SYSTEMD} - {*hierarchies()}
    if missing:
        return f"no version 1 control groups {', '.join(sorted(missing))} are mounted under {BASE}"
    return None


def group_name(lab_dir: Path) -> str:
    """Name a lab's groups: by its place too, for labs of one name may live in two places."""
    place = hashlib.sha256(os.fsencode(lab_dir)).hexdigest()[:6]
    return f"backfill-lab-{lab_dir.name}-{place}"


def lab_directories(lab_dir: Path) -> tuple[Path, ...]:
    """Return the lab's directory in each hierarchy, if it is one that the lab uses."""
    return tuple(BASE / name / group_name(lab_dir) for name in (*CONTROLLERS, *hierarchies()[2:]))


def make(lab_dir: Path, machine: str, whole: bool = False) -> tuple[Path, ...]:
    """Make the machine's groups and return them; a process joins by writing to cgroup.procs.

    `whole`: in every hierarchy, as a machine with a systemd of its own needs them.
    """
    tops = lab_directories(lab_dir)[: None if whole else len(CONTROLLERS)]
    made = tuple(top / machine for top in tops)
    for directory in made:
        directory.mkdir(parents=True, exist_ok=True)
        if directory.is_relative_to(BASE / "cpuset"):
            _give_processors(directory.parent)
            _give_processors(directory)
    if machine == "ctl":
        (made[0] / "cpu.shares").write_text(str(CONTROLLER_SHARES))
    return made


def _give_processors(directory: Path) -> None:
    """Let processes in: a group of the cpuset controller begins without processors and memory."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        (directory / name).write_text((directory.parent / name).read_text())


def joining(lab_dir: Path, machine: str) -> list[str]:
    """Return a command prefix that puts what follows into the machine's groups."""
    files = (top / machine / "cgroup.procs" for top in lab_directories(lab_dir))
    groups = " ".join(str(file) for file in files if file.exists())
    return ["sh", "-c", f'for g in {groups}; do echo $$ >"$g"; done; exec "$@"', "sh"]


def join(directories: tuple[Path, ...]) -> None:
    """Put the calling process into the groups."""
    for directory in directories:
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def sweep(lab_dir: Path, machine: str = "", timeout_s: float = 10.0) -> list[str]:
    """Kill what is left in the lab's groups, or in one machine's, remove them; return those that stay.

    Only for a lab whose supervisor is dead, or a machine that has ended: its processes are orphans.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = [str(top) for top in lab_directories(lab_dir) if not _remove_tree(top / machine)]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(0.02)


def sweep_dead(older_than_s: float = 60.0, name: str = _ANY) -> None:
    """Remove empty groups of labs whose watcher was killed too; never touches a process.

    Young groups stay: a lab that is just starting has groups that nobody has joined yet. From a
    process namespace of one's own every group of others looks empty, and those that libvirt has
    just made in them would go: there nothing is done, unless `name` says whose groups are meant.
    """
    if name == _ANY and Path("/proc/self/ns/pid").stat().st_ino != _FIRST_PID_NAMESPACE:
        return
    for hierarchy in hierarchies():
        for top in (BASE / hierarchy).glob(name):
            try:
                old = time.time() - top.stat().st_mtime > older_than_s
                if old and not any(path.read_text() for path in top.rglob("cgroup.procs")):
                    _remove_tree(top)
            except OSError:
                continue  # somebody else sweeps it at this moment


def _remove_tree(top: Path) -> bool:
    if not top.exists():
        return True
    for path, _, _ in os.walk(top, topdown=False):
        directory = Path(path)
        try:
            for pid in (directory / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            directory.rmdir()
        except (ProcessLookupError, OSError):
            continue  # still dying: the caller tries again until its deadline
    return not top.exists()
