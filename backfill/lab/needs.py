"""The programs and devices that this machine must have before a lab can start."""

from __future__ import annotations

import os
import shutil

from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.spec import NO_HYPERVISOR, LabError, LabPermissionError, LabSpec

_NEEDED = ("slurmctld", "slurmd", "munged", "unshare", "nsenter", "setpriv", "ip")


def check_machine(spec: LabSpec) -> None:
    """Raise LabError with what is missing and the remedy."""
    if os.geteuid() != 0:
        raise LabPermissionError(
            "a lab needs root; run this as root, or without it: backfill demo --simulated"
        )
    needed = (*_NEEDED, *(() if spec.hypervisor == NO_HYPERVISOR else ("libvirtd", "virsh")))
    missing = [tool for tool in needed if shutil.which(tool, path=SLURM_TOOLS_PATH) is None]
    if missing:
        raise LabError(f"a lab needs {', '.join(missing)}: run scripts/setup.sh")
