"""An older backfill as it was then: its program, its hook, and the guest image that it made."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from backfill.lab.image import GuestImage
from backfill.lab.spec import cache_root

ROOT = Path(__file__).parents[2]
# The last one whose journal was plain text (version 1 of `backfill/drivers/store/formats.py`).
COMMIT = "b2b710436b730307f202db3a3c353a7fd8f55d60"
# What it needs and the present one does not; all else it finds in the environment of the tests.
_NEEDED = ("apscheduler", "tzlocal")
_HOOK = """
import sys
from pathlib import Path
from backfill.drivers.slurm.hooks import build_hook
build_hook(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
"""
_IMAGE = """
import dataclasses, json, sys
from backfill.lab import image
print(json.dumps(dataclasses.asdict(image.build(lambda line: print(line, file=sys.stderr)))))
"""


@dataclass(frozen=True, slots=True)
class Older:
    """Its sources, and what it needs beside them; `older` fetches both once."""

    sources: Path
    needed: Path

    def command(self, *argv: str) -> list[str]:
        """A command line that runs a module, or `-c CODE`, in its place, whatever PYTHONPATH says."""
        path = f"{self.sources}:{self.needed}"
        return ["env", f"PYTHONPATH={path}", sys.executable, "-P", *argv]

    def build_hook(self, dest: Path, endpoint: str, timeout_ms: int) -> None:
        """Build its hook for a daemon at `endpoint`."""
        self._run(_HOOK, str(dest), endpoint, str(timeout_ms), f"{dest}.log")

    def image(self) -> GuestImage:
        """Its guest image, with the programs that it had in guests; built where the cache has none."""
        told: dict[str, str] = json.loads(self._run(_IMAGE))
        return GuestImage(**told)

    def _run(self, code: str, *argv: str) -> str:
        done = subprocess.run(self.command("-c", code, *argv), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


def older() -> Older:
    """Take it out of the repository's history, with what it needs beside our own environment."""
    home = cache_root() / "older" / COMMIT[:12]
    home.mkdir(parents=True, exist_ok=True)
    found = Older(home / "sources", home / "needed")
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (home / "ready").exists():
            return found
        for leftover in (found.sources, found.needed):
            shutil.rmtree(leftover, ignore_errors=True)
            leftover.mkdir()
        _unpack(found.sources)
        _install(found)
        (home / "ready").touch()
    return found


def _unpack(place: Path) -> None:
    archive = ["git", "-C", str(ROOT), "archive", COMMIT]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as packed:
        subprocess.run(["tar", "-x", "-C", place], stdin=packed.stdout, check=True)
    assert packed.returncode == 0, f"the repository's history lacks {COMMIT}: fetch all of it"


def _install(made: Older) -> None:
    """With the sums that its own lock file has."""
    wanted, keep = [], False
    for line in (made.sources / "requirements.lock").read_text().splitlines(keepends=True):
        keep = line.startswith(_NEEDED) if not line.startswith((" ", "\t")) else keep
        wanted += [line] if keep else []
    lock = made.needed / "needed.lock"
    lock.write_text("".join(wanted))
    uv = shutil.which("uv") or str(cache_root() / "uv/bin/uv")
    argv = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable]
    subprocess.run([*argv, "--target", made.needed, "-r", lock], check=True, env=dict(os.environ))
