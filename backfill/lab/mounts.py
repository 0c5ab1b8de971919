"""Mounts inside a machine's own namespaces, and programs of it that see another /usr."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

MS_BIND, MS_REC, MS_SLAVE, MS_SHARED = 1 << 12, 1 << 14, 1 << 19, 1 << 20
_CLONE_NEWNS = 0x20000
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """mount(2), with the error as an OSError that names the target."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def bind(source: str, target: str, flags: int = 0) -> None:
    """Show a file or directory at another place, too."""
    # A missing mount point is made: it is empty, and the packages make the same one.
    place = Path(target)
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        if Path(source).is_dir():
            place.mkdir()
        elif place.is_symlink():
            return  # such as resolv.conf pointing into the /run that is now empty
        else:
            place.touch()
    mount(source, target, flags=MS_BIND | flags)


def show_to_later() -> None:
    """Whatever is mounted in this machine from now on is seen by `see_usr`'s callers as well."""
    mount("none", "/", flags=MS_REC | MS_SHARED)


def see_usr(usr: str) -> None:
    """Let the calling process and its children have the directory `usr` as their /usr.

    Everything else they see as the machine does, also what is mounted there later.
    """
    if _libc.unshare(_CLONE_NEWNS):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), usr)
    mount("none", "/", flags=MS_REC | MS_SLAVE)
    mount(usr, "/usr", flags=MS_BIND)
