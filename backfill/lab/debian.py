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


# A root that a crash leaves half made is thrown away: dpkg need not wait for the disk after each file.
# What is installed there later shall wait again.
_NO_WAITING = (
    "--dpkgopt=force-unsafe-io",
    '--customize-hook=sed -i /force-unsafe-io/d "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"',
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
    """Make `root` with these packages and all that they need; LabError with what the log says of why not.

    A later suite comes from the mirror that this machine's apt uses for its own.
    """
    argv = ["mmdebstrap", *how, *_NO_WAITING, f"--include={','.join(packages)}", suite, str(root)]
    if suite != OWN:
        argv.append(mirror())
    with log.open("w") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        shutil.rmtree(root, ignore_errors=True)
        raise LabError(failure(suite, log.read_text(errors="replace").splitlines()))


def failure(suite: str, log: Sequence[str]) -> str:
    """Say by the lines of mmdebstrap's log why it failed: what apt met comes before what followed of it."""
    for line in log:
        if line.startswith("E: Unable to locate package "):
            return f"Debian {suite} has no package {line.split()[-1]}; leave it out"
    causes = [line for line in log if line.startswith(("Err:", "E: ", "W: Failed"))]
    return f"mmdebstrap could not install Debian {suite}: {' / '.join(causes[:3] or log[-3:])}"


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
