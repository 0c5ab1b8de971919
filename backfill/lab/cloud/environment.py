"""The Python environment of the test cloud's services, made once per lock file and kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from backfill.lab.spec import LabError, cache_root

LOCK = Path(__file__).with_name("requirements.lock")
_LIMIT_S = 900.0
_TAIL = 3


def home() -> Path:
    """Return the folder of environments and prepared databases."""
    return cache_root() / "cloud"


def ensure(progress: Callable[[str], None] = lambda line: None, lock: Path = LOCK) -> Path:
    """Return the environment's directory, installed first if it is not there. LabError says why not."""
    mark = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    place = home() / f"env-{mark}"
    if (place / "complete").exists():
        return place
    home().mkdir(parents=True, exist_ok=True)
    with (home() / "install.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            progress("installing the services of the test cloud (once)")
            shutil.rmtree(place, ignore_errors=True)
            _install(_uv(), place, lock)
            (place / "complete").touch()
    return place


def _install(uv: str, place: Path, lock: Path) -> None:
    # Trust what the machine trusts: many sites have a certificate authority of their own.
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    python = str(place / "bin/python")
    for argv in (
        [uv, "venv", "--quiet", "--python", sys.executable, str(place)],
        [
            uv,
            "pip",
            "sync",
            "--quiet",
            "--python",
            python,
            "--require-hashes",
            "--compile-bytecode",
            str(lock),
        ],
    ):
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_LIMIT_S, env={**trust, **os.environ}
        )
        if done.returncode:
            why = " ".join(done.stderr.strip().splitlines()[-_TAIL:])
            raise LabError(f"the test cloud's services could not be installed: {why}")


def _uv() -> str:
    found = shutil.which("uv")
    ours = cache_root() / "uv/bin/uv"
    if found or ours.exists():
        return found or str(ours)
    venv.create(cache_root() / "uv", with_pip=True)
    pip = [str(cache_root() / "uv/bin/pip"), "install", "--quiet", "uv"]
    subprocess.run(pip, check=True, timeout=_LIMIT_S)
    return str(ours)
