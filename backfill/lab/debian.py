"""Installs a suite of Debian into a directory, this machine's own or a later one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from backfill.lab.spec import LabError

OWN = "bookworm"
_LATER = (
    # The lists of a suite in development expire, and a mirror may be older than that.
    '--aptopt=Acquire::Check-Valid-Until "false"',
    '--aptopt=Acquire::Retries "3"',
)


def options(suite: str, *left_out: str) -> tuple[str, ...]:
    """mmdebstrap's options for the suite without the folders `left_out` of /usr/share."""
    return (
        "--variant=essential",
        "--mode=root",
        "--aptopt=APT::Install-Recommends false",
        '--aptopt=Acquire::Languages "none"',
        *(_LATER if suite != OWN else ()),
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in left_out),
    )


def install(suite: str, packages: Sequence[str], how: Sequence[str], root: Path, log: Path) -> None:
    """Make `root` with these packages and all that they need; LabError with the log's last lines.

    A later suite comes from the mirror that this machine's apt uses for its own.
    """
    argv = ["mmdebstrap", *how, f"--include={','.join(packages)}", suite, str(root)]
    if suite != OWN:
        argv.append(mirror())
    with log.open("w") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        shutil.rmtree(root, ignore_errors=True)
        lines = log.read_text(errors="replace").splitlines()
        for line in lines:
            if line.startswith("E: Unable to locate package "):
                raise LabError(f"Debian {suite} has no package {line.split()[-1]}; leave it out")
        raise LabError(f"mmdebstrap could not install Debian {suite}: {' / '.join(lines[-3:])}")


def mirror() -> str:
    """Return the mirror from which this machine's apt takes its own release of Debian."""
    targets = _run("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)")
    for line in targets.splitlines():
        release, component, uri = line.split(maxsplit=2)
        if (release, component) == (OWN, "main"):
            return uri
    raise LabError(f"apt has no source for Debian {OWN} main; add one to /etc/apt")


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed: {done.stderr.strip()}")
    return done.stdout
