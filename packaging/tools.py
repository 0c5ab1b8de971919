"""Tools that packages and pages are built with, each group in an environment of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from backfill.lab.spec import cache_root

ROOT = Path(__file__).resolve().parents[1]


class BuildError(Exception):
    """Something could not be built; the text says what and why."""


def run(*argv: str | Path, cwd: Path = ROOT) -> str:
    """Return what a tool prints. Raises BuildError with its last lines where it fails."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(commit_s()), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(argv, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise BuildError(f"{' '.join(str(part) for part in argv[:4])} ... failed:\n{last}")
    return done.stdout


def commit_s() -> int:
    """When the last commit was made, epoch seconds: the time of everything that is built."""
    argv = ("git", "-C", str(ROOT), "log", "-1", "--format=%ct")
    return int(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def uv() -> str:
    """Return the uv that the set-up installs, where the machine has none of its own."""
    return shutil.which("uv") or str(cache_root() / "uv/bin/uv")


def tools_python(group: str) -> Path:
    """Return the Python of an environment with a group's tools, made on first use from its lock file."""
    lock = ROOT / f"requirements.{group}.lock"
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:16]
    home = cache_root() / f"{group}-{digest}"
    if not (home / "ready").exists():
        run(uv(), "venv", "--quiet", "--clear", "--python", sys.executable, home)
        run(uv(), "pip", "sync", "--quiet", "--python", home / "bin/python", "--require-hashes", lock)
        (home / "ready").touch()
    return home / "bin/python"


if __name__ == "__main__":
    try:
        print(tools_python(sys.argv[1]))
    except BuildError as error:
        sys.exit(str(error))
