"""Builds of images and roots that were cut off: removed with what they had mounted."""

from __future__ import annotations

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
        shutil.rmtree(build)


def _mounted_below(folder: Path) -> list[str]:
    """Mount points in the order in which they were mounted (proc(5), mountinfo)."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [place for place in places if Path(place).is_relative_to(folder.resolve())]
