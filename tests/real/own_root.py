"""Root file systems of a user's own for tests: one that runs, and what others, or its owner, may do to it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

OWNER, OTHER = 2001, 2002
MOST_MB = 8
_PROGRAMS = ("sh", "cat", "touch", "ls", "id", "mount")


def make_root(tree: Path, *shown: str, owner: int = OWNER) -> Path:
    """Make a small root there: one static program, and directories for what is seen inside."""
    for name in ("bin", "etc", "dev", "proc", "sys", "tmp", *shown):
        (tree / name).mkdir(parents=True)
    shutil.copy2("/bin/busybox", tree / "bin/busybox")
    for name in _PROGRAMS:
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "etc/release").write_text("root6\n")
    for path in (tree, *tree.rglob("*")):
        os.chown(path, owner, owner, follow_symlinks=False)
    return tree


def _grow(tree: Path) -> None:
    with (tree / "etc/large").open("w") as file:
        file.truncate(MOST_MB << 20)
    os.chown(tree / "etc/large", OWNER, OWNER)


def _set_user(tree: Path) -> None:
    (tree / "bin/busybox").chmod(0o4755)


def _plant(tree: Path) -> None:
    """As somebody does who could write into one of its directories."""
    shutil.copy2("/bin/busybox", tree / "bin/sudo")
    os.chown(tree / "bin/sudo", OTHER, OTHER)


def _open_up(tree: Path) -> None:
    (tree / "etc").chmod(0o777)


def _share(tree: Path) -> None:
    (tree / "etc/release").chmod(0o664)


def _add_device(tree: Path) -> None:
    os.mknod(tree / "etc/disk", stat.S_IFBLK | 0o666, os.makedev(254, 0))
    os.chown(tree / "etc/disk", OWNER, OWNER)


def _give_away(tree: Path) -> None:
    os.chown(tree, OTHER, OTHER)


def _link(tree: Path) -> None:
    """Where it was is a link to somebody else's."""
    tree.rename(tree.with_name("others"))
    os.chown(tree.with_name("others"), OTHER, OTHER)
    tree.symlink_to("others")


def _lead_out(tree: Path) -> None:
    """What is to be seen in /proc would cover a directory outside."""
    (tree / "proc").rmdir()
    (tree / "proc").symlink_to("/etc")
    os.chown(tree / "proc", OWNER, OWNER, follow_symlinks=False)


def _take_away(tree: Path) -> None:
    (tree / "proc").rmdir()


# What was done to the tree, and what is said of it then.
SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "too large": (_grow, f"is larger than {MOST_MB} MB"),
    "runs as its owner": (_set_user, "/bin/busybox would run as its owner or group"),
    "somebody's program in it": (_plant, f"/bin/sudo belongs to user {OTHER}, not to you"),
    "open to everybody": (_open_up, "/etc can be written by others"),
    "open to its group": (_share, "/etc/release can be written by others"),
    "a device": (_add_device, "/etc/disk is a device"),
    "somebody else's": (_give_away, f"belongs to user {OTHER}, not to you"),
    "a link": (_link, "is a symbolic link"),
    "a link inside": (_lead_out, "/proc has to be a plain directory all the way"),
    "incomplete": (_take_away, "has no directory proc: make an empty one"),
}
