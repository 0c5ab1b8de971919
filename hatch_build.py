"""Puts into the wheel what a site needs beside the modules: manual, completions, unit, samples, Salt tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMPLETIONS = {
    "bash": "share/bash-completion/completions/backfill",
    "zsh": "share/zsh/site-functions/_backfill",
    "fish": "share/fish/vendor_completions.d/backfill.fish",
}
SAMPLES = ("policy.yaml", "policy.minimal.yaml", "images.yaml")
MONITORING = ("backfill.rules.yaml", "backfill.dashboard.json")
UNITS = ("backfill.service", "backfill-web.service")
DROP_IN = "slurm-user.conf"  # for a daemon that runs as SlurmUser


class SiteFiles(BuildHookInterface):  # type: ignore[type-arg]  # hatchling does not say of what
    """Write the generated files into the build directory and name all of them as the wheel's data."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the data to a wheel; an editable install needs none, and a source archive has the sources."""
        if self.target_name != "wheel" or version == "editable":
            return
        root, made = Path(self.root), Path(self.directory) / "site-files"
        self._generate(root, made)
        data: dict[str, str] = build_data["shared_data"]
        for page in sorted((made / "man").iterdir()):
            data[str(page)] = f"share/man/man{page.suffix[1:]}/{page.name}"
        for shell, place in COMPLETIONS.items():
            data[str(made / shell)] = place
        for name in SAMPLES:
            data[str(root / "config" / name)] = f"share/backfill/config/{name}"
        for name in MONITORING:
            data[str(root / "config/monitoring" / name)] = f"share/backfill/monitoring/{name}"
        for unit in UNITS:
            data[str(root / "config" / unit)] = f"share/backfill/systemd/{unit}"
        data[str(root / "backfill/ui/setup" / DROP_IN)] = f"share/backfill/systemd/{DROP_IN}"
        data[str(root / "salt_states")] = "share/backfill/salt_states"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was generated: it is in the wheel now."""
        shutil.rmtree(Path(self.directory) / "site-files", ignore_errors=True)

    def _generate(self, root: Path, made: Path) -> None:
        (made / "man").mkdir(parents=True, exist_ok=True)
        self._run(root, "backfill.ui.manual", str(made / "man"), "--version", self.metadata.version)
        for shell in COMPLETIONS:
            (made / shell).write_text(self._run(root, "backfill", "completion", shell), encoding="utf-8")

    def _run(self, root: Path, *module: str) -> str:
        """Run one of our own modules from the sources; return what it prints."""
        paths = os.pathsep.join([str(root), *sys.path])
        environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
        argv = [sys.executable, "-m", *module]
        return subprocess.run(
            argv, env=environment, cwd=root, check=True, capture_output=True, text=True
        ).stdout
