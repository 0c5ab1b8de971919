"""The lab's control groups (version 1): made per machine, swept away when the lab is gone."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

CONTROLLERS = ("cpu", "cpuacct")
BASE = Path("/sys/fs/cgroup")
# The controller stands for a machine with processors of its own, so guests must not starve it.
CONTROLLER_SHARES = 10240
_ANY = "backfill-lab-*"
_FIRST_PID_NAMESPACE = 0xEFFFFFFC  # include/linux/proc_ns.h, PROC_PID_INIT_INO


def usable() -> str:
    """Empty when control groups can be used, otherwise one sentence with the reason."""
    for controller in CONTROLLERS:
        if not (BASE / controller / "cgroup.procs").exists():
            return f"no version 1 control group '{controller}' is mounted under {BASE}"
        if not os.access(BASE / controller, os.W_OK):
            return f"{BASE / controller} cannot be written"
    return ""


def group_name(lab_dir: Path) -> str:
    """The name of a lab's groups: of the place too, for labs of one name may live in two places."""
    place = hashlib.sha256(os.fsencode(lab_dir)).hexdigest()[:6]
    return f"backfill-lab-{lab_dir.name}-{place}"


def lab_directories(lab_dir: Path) -> tuple[Path, ...]:
    """The lab's directory under each controller."""
    return tuple(BASE / controller / group_name(lab_dir) for controller in CONTROLLERS)


def make(lab_dir: Path, machine: str) -> tuple[Path, ...]:
    """Make the machine's groups and return them; a process joins by writing to cgroup.procs."""
    made = tuple(top / machine for top in lab_directories(lab_dir))
    for directory in made:
        directory.mkdir(parents=True, exist_ok=True)
    if machine == "ctl":
        (made[0] / "cpu.shares").write_text(str(CONTROLLER_SHARES))
    return made


def joining(lab_dir: Path, machine: str) -> list[str]:
    """A command prefix that puts what follows into the machine's groups."""
    groups = " ".join(str(top / machine / "cgroup.procs") for top in lab_directories(lab_dir))
    return ["sh", "-c", f'for g in {groups}; do echo $$ >"$g"; done; exec "$@"', "sh"]


def join(directories: tuple[Path, ...]) -> None:
    """Put the calling process into the groups."""
    for directory in directories:
        (directory / "cgroup.procs").write_text(str(os.getpid()))


def sweep(lab_dir: Path, timeout_s: float = 10.0) -> list[str]:
    """Kill what is left in the lab's groups, remove them; return those that could not go.

    Only for a lab whose supervisor is dead: its processes are orphans by definition.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = [str(top) for top in lab_directories(lab_dir) if not _remove_tree(top)]
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
    for controller in CONTROLLERS:
        for top in (BASE / controller).glob(name):
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
