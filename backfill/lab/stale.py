"""Builds of images and roots that were cut off: removed with what they had mounted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from backfill.lab.spec import LabError


def clear_builds(folder: Path) -> None:
    """Remove all `.building-*` in the folder; its lock is held, so nobody is at work there.

    A builder that was killed leaves its /proc mounted, which cannot be removed as files are.
    Raises LabError when something cannot be unmounted.
    """
    for build in folder.glob(".building-*"):
        for place in reversed(_mounted_below(build)):
            done = subprocess.run(["umount", place], capture_output=True, text=True, check=False)
            if done.returncode:
                raise LabError(
                    f"{build} is left of a set-up that was cut off and cannot be removed: "
                    f"{done.stderr.strip()}; unmount {place} by hand and begin again"
                )
        _refuse_other_devices(build)
        shutil.rmtree(build)


def _refuse_other_devices(build: Path) -> None:
    """Raise LabError where a file system is still mounted below: what is on it is not ours to delete."""
    own = build.parent.lstat().st_dev
    below = (Path(folder) / name for folder, names, _ in os.walk(build) for name in names)
    for path in (build, *below):
        if path.lstat().st_dev != own:
            raise LabError(
                f"{build} is left of a set-up that was cut off, and a file system is mounted on {path}; "
                "unmount it by hand and begin again"
            )


def _mounted_below(folder: Path) -> list[str]:
    places = mount_points(Path("/proc/self/mountinfo").read_bytes())
    return [place for place in places if Path(place).is_relative_to(folder.resolve())]


def mount_points(mountinfo: bytes) -> list[str]:
    """Return the mount points in the order in which they were mounted (proc(5))."""
    places = (line.split()[4] for line in mountinfo.splitlines())
    # Blanks and the like are written as octal numbers there.
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", _byte, place)) for place in places]


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])
