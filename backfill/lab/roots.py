"""Root directories with other Slurm releases, each from its Debian suite, built once and cached."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from backfill.lab import debian
from backfill.lab.spec import LabError, LabSpec, cache_root
from backfill.lab.stale import clear_builds

# The release that comes with Debian 12 is installed on the machine itself and needs no root.
INSTALLED = "22.05"
SUITES = {"24.11": "trixie", "26.05": "forky"}
RELEASES = (INSTALLED, *SUITES)
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmrestd",
    "slurm-wlm-basic-plugins",
    "munge",
    "iproute2",
    "mount",
    "hostname",
)
_LEFT_OUT = ("man", "doc", "locale", "info")

Progress = Callable[[str], None]


def equip(spec: LabSpec, progress: Progress = lambda line: None) -> LabSpec:
    """The same lab with every machine on a root of the specification's release, built if need be.

    A lab of the installed release is returned as it is. Raises LabError for a release that no
    suite has, and when a root cannot be built.
    """
    if spec.slurm_version == INSTALLED:
        return spec
    root = str(build(spec.slurm_version, progress))
    return replace(spec, roots=tuple((machine, root) for machine in spec.machines[1:]))


def find(release: str) -> Path | None:
    """The cached root of the present recipe, or None when it has to be built first."""
    place = _place(release)
    return place if place.exists() else None


def build(release: str, progress: Progress = lambda line: None) -> Path:
    """Return the release's root, building it when the cache has none of this recipe."""
    if (root := find(release)) is not None:
        return root
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise LabError(
            f"a root with Slurm {release} needs root and mmdebstrap: run scripts/setup.sh as root"
        )
    place = _place(release)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root := find(release)) is not None:
            return root
        clear_builds(place.parent)
        progress(f"Slurm {release}: installing Debian {SUITES[release]} into a root of its own")
        began_s = time.monotonic()
        work = place.parent / f".building-{place.name}"
        suite = SUITES[release]
        how = debian.options(suite, *_LEFT_OUT)
        debian.install(suite, PACKAGES, how, work, place.parent / f"{release}.log")
        work.rename(place)
        progress(f"Slurm {release}: ready ({time.monotonic() - began_s:.0f} s)")
    return place


def _place(release: str) -> Path:
    if release not in SUITES:
        known = ", ".join(RELEASES)
        raise LabError(f"no Debian suite is known for Slurm {release}; there are {known}")
    suite = SUITES[release]
    recipe = repr((suite, PACKAGES, debian.options(suite, *_LEFT_OUT)))
    name = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return cache_root() / "roots" / f"{release}-{name}"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """`python -m backfill.lab.roots`: build the roots that are missing; print where all are."""
    for release in SUITES:
        try:
            root = build(release, _to_stderr)
        except LabError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        sys.stdout.write(f"{release} {root}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
