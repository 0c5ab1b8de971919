"""Root directories with other Slurm releases, each from its Debian suite, built once and cached."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

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
_OPTIONS = (
    "--variant=essential",
    "--mode=root",
    "--aptopt=APT::Install-Recommends false",
    '--aptopt=Acquire::Languages "none"',
    # The lists of a suite in development expire, and a mirror may be older than that.
    '--aptopt=Acquire::Check-Valid-Until "false"',
    '--aptopt=Acquire::Retries "3"',
    *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("man", "doc", "locale", "info")),
)

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
        _install(SUITES[release], work, place.parent / f"{release}.log")
        work.rename(place)
        progress(f"Slurm {release}: ready ({time.monotonic() - began_s:.0f} s)")
    return place


def mirror() -> str:
    """Where this machine's apt takes its own release of Debian from."""
    codename = _run("sh", "-c", '. /etc/os-release && echo "$VERSION_CODENAME"').strip()
    targets = _run("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)")
    for line in targets.splitlines():
        release, component, uri = line.split(maxsplit=2)
        if (release, component) == (codename, "main"):
            return uri
    raise LabError(f"apt has no source for Debian {codename} main; add one to /etc/apt")


def _place(release: str) -> Path:
    if release not in SUITES:
        known = ", ".join(RELEASES)
        raise LabError(f"no Debian suite is known for Slurm {release}; there are {known}")
    recipe = repr((SUITES[release], PACKAGES, _OPTIONS))
    name = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    return cache_root() / "roots" / f"{release}-{name}"


def _install(suite: str, work: Path, log: Path) -> None:
    argv = ["mmdebstrap", *_OPTIONS, f"--include={','.join(PACKAGES)}", suite, str(work), mirror()]
    with log.open("w") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        shutil.rmtree(work, ignore_errors=True)
        last = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise LabError(f"mmdebstrap could not install Debian {suite}: {last}")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed: {done.stderr.strip()}")
    return done.stdout


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
