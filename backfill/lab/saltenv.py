"""Salt's own Python environment: made once per lock file and interpreter, kept in the cache, not in ours."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from backfill.lab.spec import LabError, cache_root

LOCK_FILE = Path(__file__).parents[2] / "requirements.salt.lock"


def salt_python() -> str:
    """Return the interpreter that has Salt; make its environment when this lock file has none yet."""
    interpreter = hashlib.sha256(sys.version.encode()).hexdigest()[:8]
    home = cache_root() / "salt" / f"{lock_hash()}-{interpreter}"
    python = home / "bin/python"
    if (home / "complete").exists():
        return str(python)
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / ".lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            _run(sys.executable, "-m", "venv", "--without-pip", str(home))
            _run(uv(), "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(LOCK_FILE))
            (home / "complete").touch()
    return str(python)


def install_into(target: Path) -> None:
    """Put Salt below `target`, found there by PYTHONPATH alone, so that the folder can move."""
    _run(
        uv(),
        "pip",
        "install",
        "--quiet",
        "--target",
        str(target),
        "--require-hashes",
        "--python",
        sys.executable,
        "--link-mode",
        "copy",
        "-r",
        str(LOCK_FILE),
    )


def lock_hash() -> str:
    """Return the lock file's name in the cache."""
    return hashlib.sha256(LOCK_FILE.read_bytes()).hexdigest()[:16]


def uv() -> str:
    """Return the installer that scripts/setup.sh has left."""
    found = shutil.which("uv") or shutil.which("uv", path=str(cache_root() / "uv/bin"))
    if found is None:
        raise LabError("Salt's environment needs uv: run scripts/setup.sh")
    return found


def _run(*argv: str) -> None:
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true", **os.environ}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=trust)
    if done.returncode != 0:
        last = " / ".join(done.stderr.strip().splitlines()[-3:])
        raise LabError(f"Salt's environment could not be made: {last}")
