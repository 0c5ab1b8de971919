"""Root directories with other releases of Slurm or of libvirt and QEMU, built once and cached.

Each comes from a later Debian suite than this machine's. A machine runs its Slurm in such a root;
of a hypervisor's, libvirtd and its guests see /usr alone, and all else as the machine has it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from backfill.lab import debian
from backfill.lab.spec import CONDOR_SLURM, HYPERVISORS, SITE_RELEASES, LabError, LabSpec, cache_root
from backfill.lab.stale import clear_builds

# The release that comes with Debian 12 is installed on the machine itself and needs no root.
INSTALLED = "22.05"
SUITES = {"24.11": "trixie", "26.05": "forky"}
RELEASES = (INSTALLED, *SUITES)
PACKAGES = (
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurmrestd",
    "slurm-wlm-basic-plugins",
    "munge",
    "iproute2",
    "mount",
    "hostname",
)
HYPERVISOR_PACKAGES = (
    "libvirt-daemon",
    "libvirt-daemon-driver-nodedev",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-driver-storage",
    "libvirt-clients",
    "qemu-system-x86",
    "qemu-utils",
)
# All that machines with systemd need, whatever their part: each has its own services enabled.
SITE_PACKAGES = (
    "acl",
    "apt",
    "dbus",
    "hostname",
    "iproute2",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "libvirt-daemon-system",
    "mariadb-client",
    "mariadb-server",
    "mount",
    "munge",
    "procps",
    "python3",
    "python3-libvirt",
    "python3-rich",
    "python3-yaml",
    "qemu-system-x86",
    "qemu-utils",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "systemd",
    "systemd-container",
    "systemd-sysv",
)
# The pool's daemons, and a compute element's: blahp calls Slurm's commands.
CONDOR = "condor"
CONDOR_PACKAGES = (
    "htcondor",
    "hostname",
    "iproute2",
    "mount",
    "munge",
    "procps",
    "python3-minimal",
    "slurm-client",
    "slurm-wlm-basic-plugins",
)
_LEFT_OUT = ("man", "doc", "locale", "info")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Recipe:
    what: str
    suite: str
    packages: tuple[str, ...]


_RECIPES = {
    **{name: _Recipe(f"Slurm {name}", suite, PACKAGES) for name, suite in SUITES.items()},
    **{
        f"site-{name}": _Recipe(f"a site with Slurm {name}", suite, SITE_PACKAGES)
        for name, suite in {INSTALLED: debian.OWN, **SUITES}.items()
        if name in SITE_RELEASES
    },
    CONDOR: _Recipe("HTCondor", SUITES[CONDOR_SLURM], CONDOR_PACKAGES),
    "debian-13": _Recipe("the hypervisor of Debian 13", "trixie", HYPERVISOR_PACKAGES),
}
NAMES = tuple(_RECIPES)


def equip(spec: LabSpec, progress: Progress = lambda line: None) -> LabSpec:
    """Put every machine of the lab on a root of the specification's release, built if need be.

    A lab of the installed release is returned as it is. Raises LabError for a release that no
    suite has, and when a root cannot be built.
    """
    for name in sorted({spec.hypervisor_of(host) for host in spec.host_names}):
        if name in _RECIPES and not spec.site:
            build(name, progress)
    if spec.slurm_version == INSTALLED and not spec.site:
        return spec
    root = str(build(f"site-{spec.slurm_version}" if spec.site else spec.slurm_version, progress))
    machines = dict.fromkeys(spec.machines[1:], root)
    if spec.condor:
        machines |= dict.fromkeys(spec.condor_machines, str(build(CONDOR, progress)))
    return replace(spec, roots=tuple(machines.items()))


def hypervisor_usr(release: str) -> str:
    """Return the /usr of a host's libvirtd and its guests; "" where it is the machine's own."""
    if release == HYPERVISORS[0]:
        return ""
    root = find(release)
    if root is None:
        raise LabError(f"{release}'s hypervisor is not here yet; run: backfill lab roots {release}")
    return str(root / "usr")


def find(name: str) -> Path | None:
    """Return the cached root of the present recipe, or None when it has to be built first."""
    place = _place(name)
    return place if place.exists() else None


def build(name: str, progress: Progress = lambda line: None) -> Path:
    """Return the root of a Slurm release or hypervisor, building it when the cache has none."""
    if (root := find(name)) is not None:
        return root
    recipe = _RECIPES[name]
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise LabError(f"a root with {recipe.what} needs root and mmdebstrap: run scripts/setup.sh as root")
    place = _place(name)
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root := find(name)) is not None:
            return root
        clear_builds(place.parent)
        progress(f"{recipe.what}: installing Debian {recipe.suite} into a root of its own")
        began_s = time.monotonic()
        work = place.parent / f".building-{place.name}"
        how = debian.options(recipe.suite, *_LEFT_OUT)
        debian.install(recipe.suite, recipe.packages, how, work, place.parent / f"{name}.log")
        work.rename(place)
        progress(f"{recipe.what}: ready ({time.monotonic() - began_s:.0f} s)")
    return place


def _place(name: str) -> Path:
    if name not in _RECIPES:
        known = ", ".join((*RELEASES, *HYPERVISORS, CONDOR))
        raise LabError(f"no Debian suite is known for {name}; there are {known}")
    recipe = _RECIPES[name]
    options = debian.options(recipe.suite, *_LEFT_OUT)
    told = repr((recipe.suite, recipe.packages, options))
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return cache_root() / "roots" / f"{name}-{digest}"


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """`python -m backfill.lab.roots`: build the roots that are missing; print where all are."""
    for name in NAMES:
        try:
            root = build(name, _to_stderr)
        except LabError as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        sys.stdout.write(f"{name} {root}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
