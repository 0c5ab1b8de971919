"""Whether KVM really runs a guest here: a probe boot decides, once per start of this machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from backfill.lab import image
from backfill.lab.spec import cache_root

PROBE_TIMEOUT_S = 5.0
_MARK = "BACKFILL-STEP kernel"


def domain_type() -> str:
    """ "kvm" or "qemu" for libvirt's <domain type=...>; probes when nobody has since the start."""
    verdict = _verdict_file()
    if not verdict.exists():
        verdict.parent.mkdir(parents=True, exist_ok=True)
        fresh = verdict.with_name(f"{verdict.name}.{os.getpid()}")
        fresh.write_text("kvm" if _probe() else "qemu")
        fresh.rename(verdict)
    return verdict.read_text()


def known_domain_type() -> str:
    """Like `domain_type`, but never probes: "qemu" until a probe has said otherwise."""
    verdict = _verdict_file()
    return verdict.read_text() if verdict.exists() else "qemu"


def _verdict_file() -> Path:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return cache_root() / f"kvm-{boot}"


def _probe() -> bool:
    """Boot kernel and initial ram disk under KVM; there must be a sign of life in seconds."""
    built = image.find()
    if built is None or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    with tempfile.NamedTemporaryFile("r", prefix="backfill-kvm-") as console:
        argv = [
            "qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "256", "-nodefaults",
            "-display", "none", "-no-reboot", "-kernel", built.kernel, "-initrd", built.initrd,
            "-append", built.cmdline + " backfill.probe", "-serial", f"file:{console.name}",
        ]  # fmt: skip
        try:
            subprocess.run(argv, timeout=PROBE_TIMEOUT_S, check=False, capture_output=True)
        except (subprocess.TimeoutExpired, OSError):
            return False
        return _MARK in console.read()
