"""Runs the programs that handle images of disks and memory on the daemon's machine, such as qemu-img.

They speak English whatever the daemon's language is: that a disk is full is known by their words alone.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from backfill.ports.errors import DriverError

# For what reads or writes a whole disk or memory: tens of gigabytes, perhaps over the network.
WHOLE_FILE_S = 3600.0
_FULL = ("No space left on device", "Disk quota exceeded")  # ENOSPC and EDQUOT
_PACKAGES = {"cp": "coreutils", "qemu-img": "qemu-utils"}


def run(name: str, argv: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program for the instance `name` until it ends, however it does.

    DriverError: it cannot be started, or takes longer than `limit_s` and is killed.
    """
    program = argv[0]
    try:
        return subprocess.run(
            argv,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
            env=in_english(),
        )
    except OSError as error:
        raise DriverError(name, *missing(program, error)) from error
    except subprocess.TimeoutExpired as error:
        raise DriverError(
            name,
            f"{program} was ended because it took longer than {limit_s:g} s",
            "see how fast the directory of instances can be read and written",
        ) from error


def in_english() -> dict[str, str]:
    """Return the environment for such a program."""
    return {**os.environ, "LC_ALL": "C"}


def said_full(said: str) -> bool:
    """Return True if a program that failed said that the disk, or somebody's share of it, is full."""
    return any(words in said for words in _FULL)


def missing(program: str, error: OSError) -> tuple[str, str]:
    """Say that a program cannot be started, and what to do."""
    return f"cannot run {program}: {error.strerror}", f"install {_PACKAGES.get(program, program)}"
