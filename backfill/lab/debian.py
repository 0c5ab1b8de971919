"""Installs a suite of Debian into a directory, the lab's own or a later one."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from backfill.lab.spec import LabError

# The suite of what a lab has installed on its machine, and which a site's image is made of by default.
OWN = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
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


def install(
    suite: str,
    packages: Sequence[str],
    how: Sequence[str],
    root: Path,
    log: Path,
    sources: Sequence[str] = (),
) -> None:
    """Make `root` with these packages and all that they need; LabError with what the log says of why not.

    `sources`: lines or files of apt's; without any, a later suite comes from `mirror`, without its updates.
    Where this machine's apt knows none, mmdebstrap takes Debian's own, with them.
    """
    argv = ["mmdebstrap", *how, *_NO_WAITING, f"--include={','.join(packages)}", suite, str(root), *sources]
    if suite != OWN and not sources and (place := mirror(suite)):
        argv.append(place)
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
    # apt says what it could not get, and why in the next line, which is indented.
    whole = [
        f"{line}: {why.strip()}" if why.startswith("  ") else line
        for line, why in zip(log, [*log[1:], ""], strict=True)
    ]
    causes = [line for line in whole if line.startswith(("Err:", "E: ", "W: Failed"))]
    return f"mmdebstrap could not install Debian {suite}: {' / '.join(causes[:3] or log[-3:])}"


def mirror(suite: str) -> str:
    """Return where to get a suite of Debian from, as this machine's apt does; empty: it does not say."""
    return _place(suite, "")


def archive(suite: str) -> tuple[str, ...]:
    """Return apt's lines for a stable suite with its updates and its security updates.

    None where this machine's apt gets nothing of Debian's; LabError where it gets no security updates.
    """
    of_machine = mirror(suite)
    if not of_machine:
        return ()
    security = _place(suite, "-security")
    if not security:
        raise LabError(
            f"apt has no source of Debian's security updates: name one of {suite}-security in /etc/apt"
        )
    places = {
        suite: of_machine,
        f"{suite}-updates": _place(suite, "-updates") or of_machine,
        f"{suite}-security": security,
    }
    # Which keys apt trusts by itself is another matter in each release.
    trusted = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    return tuple(f"deb {trusted}{place} {name} main" for name, place in places.items())


def _place(suite: str, mark: str) -> str:
    """Choose the machine's mirror of the suite, then that of its own release; empty: it has neither."""
    known = _known()
    return known.get(suite + mark) or known.get(own_suite() + mark) or ""


def own_suite() -> str:
    """Return the name of this machine's release of Debian; empty where it runs something else."""
    try:
        told = platform.freedesktop_os_release()
    except OSError:
        return ""
    return told.get("VERSION_CODENAME", "") if told["ID"] == "debian" else ""


def _known() -> dict[str, str]:
    """Return where this machine's apt gets Debian's main from, by the suite's name and by its codename."""
    if shutil.which("apt-get") is None:
        return {}
    words = (
        "apt-get",
        "indextargets",
        "--format",
        "$(ORIGIN)|$(COMPONENT)|$(RELEASE)|$(CODENAME)|$(REPO_URI)",
    )
    targets = [line.split("|", 4) for line in _run(*words).splitlines()]
    # Others name their suites and components as Debian does; a mirror may call its origin what it likes.
    targets.sort(key=lambda target: target[0] != "Debian")
    found: dict[str, str] = {}
    for _, component, release, codename, uri in targets:
        for name in (release, codename) if component == "main" else ():
            found.setdefault(name, uri)
    return found


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed: {done.stderr.strip()}")
    return done.stdout
