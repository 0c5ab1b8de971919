"""Compiles the SPANK plugin for one release of Slurm, which refuses a plugin of any other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from backfill.core.model.cluster import SlurmVersion

SOURCE = Path(__file__).with_name("plugin.c")
_COMPILES_S = 60
_RELEASE = re.compile(r"\b(\d{2})\.(\d{2})\.(\d+)")


class SpankError(ValueError):
    """The plugin cannot be built so; the message is one sentence."""


def release_of(text: str) -> SlurmVersion:
    """Return the release in what `sbatch --version` prints, or that an admin has typed."""
    found = _RELEASE.search(text)
    if found is None:
        raise SpankError(f"{text.strip()[:80]!r} names no release of Slurm such as 24.11.5")
    year, month, patch = (int(part) for part in found.groups())
    return SlurmVersion(year, month, patch)


def build_plugin(dest: Path, release: SlurmVersion, compiler: str = "gcc") -> None:
    """Compile the plugin to `dest`, in one step. SpankError: there is no compiler, or it fails."""
    if shutil.which(compiler) is None:
        raise SpankError(f"the plugin cannot be compiled: there is no {compiler} here; install it")
    number = release.year << 16 | release.month << 8 | release.patch
    with tempfile.TemporaryDirectory(dir=dest.parent, prefix=".spank-") as scratch:
        made = Path(scratch, dest.name)
        argv = [compiler, "-shared", "-fPIC", "-O2", "-s", f"-DSLURM_VERSION_NUMBER={number}"]
        try:
            done = subprocess.run(
                [*argv, "-o", str(made), str(SOURCE)], capture_output=True, check=False, timeout=_COMPILES_S
            )
        except subprocess.TimeoutExpired as error:
            raise SpankError(
                f"{compiler} has not compiled {SOURCE} within {_COMPILES_S} s; is the machine busy? try again"
            ) from error
        except OSError as error:
            raise SpankError(f"{compiler} cannot be run: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().split("\n")[0][:200]
            raise SpankError(f"{compiler} cannot compile {SOURCE}: {said}")
        made.chmod(0o644)
        os.replace(made, dest)
