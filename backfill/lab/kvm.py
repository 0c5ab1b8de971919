"""Finds out by a probe boot, once per start of this machine, if KVM really runs a guest here."""

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
    """Return the type of libvirt's <domain> here, "kvm" or "qemu"; probe if nobody has yet.

    Without a guest image there is nothing to probe with: "qemu" then, until there is one.
    """
    verdict = _verdict_file()
    if not verdict.exists() and image.find() is not None:
        works = os.access("/dev/kvm", os.R_OK | os.W_OK) and boots_under("kvm")
        verdict.parent.mkdir(parents=True, exist_ok=True)
        fresh = verdict.with_name(f"{verdict.name}.{os.getpid()}")
        fresh.write_text("kvm" if works else "qemu")
        fresh.rename(verdict)
    return known_domain_type()


def known_domain_type() -> str:
    """Like `domain_type`, but never probes: "qemu" until a probe has said otherwise."""
    verdict = _verdict_file()
    return verdict.read_text() if verdict.exists() else "qemu"


def _verdict_file() -> Path:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return cache_root() / f"kvm-{boot}"


def boots_under(accelerator: str, limit_s: float = PROBE_TIMEOUT_S) -> bool:
    """Return True if the guest's kernel gives a sign of life under QEMU's `accelerator` within `limit_s`.

    KVM that works needs a fraction of a second; the default gives up where it hangs.
    """
    built = image.find()
    if built is None:
        return False
    with tempfile.NamedTemporaryFile("r", prefix="backfill-probe-") as console:
        argv = [
            # Broken KVM makes QEMU abort, and a core file in the user's directory helps nobody.
            "prlimit",
            "--core=0",
            "--",
            "qemu-system-x86_64",
            "-accel",
            accelerator,
            "-cpu",
            "max",
            "-m",
            "256",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-kernel",
            built.kernel,
            "-initrd",
            built.initrd,
            "-append",
            f"{built.cmdline} backfill.probe",
            "-serial",
            f"file:{console.name}",
        ]
        try:
            subprocess.run(argv, timeout=limit_s, check=False, capture_output=True)
        except (subprocess.TimeoutExpired, OSError):
            return False
        return _MARK in console.read()
