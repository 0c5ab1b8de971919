"""The guest image: a minimal Debian with slurmd and munge, built once and cached by its recipe.

There is one for every Slurm release, all of it from that release's Debian suite, the kernel too;
and one for the installed release with Salt baked in, which is three times as large.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from backfill.drivers.slurm.hooks.build import HOOK_SOURCE
from backfill.lab import debian, guestroot, saltimage, tsc
from backfill.lab.roots import INSTALLED, RELEASES, SUITES
from backfill.lab.spec import LabError, cache_root
from backfill.lab.stale import clear_builds

PACKAGES = (
    "slurmd",
    "slurm-client",
    "munge",
    "qemu-guest-agent",
    "iproute2",
    "procps",
    "mount",
    "kmod",
    "chrony",
    "busybox-static",
    "linux-image-cloud-amd64",
    "initramfs-tools",  # which the kernel asks for, unless it takes a larger one; does nothing
)
SALT_PACKAGES = ("python3",)
DISK_MB = 1024
# norandmaps: QEMU's emulation finds translated code again by its address, so that a program whose
# libraries lie elsewhere each time is translated anew each time (a shell: 85 ms instead of 11).
# lsm= to init_on_alloc=0: nothing in a guest asks for these, and they are in the way of every call.
CMDLINE = (
    "quiet console=ttyS0 root=/dev/vda rw tsc=reliable no_timer_check mitigations=off audit=0 "
    "lsm= psi=0 hardened_usercopy=off randomize_kstack_offset=off init_on_alloc=0 "
    "cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 nokaslr "
    "8250.nr_uarts=1 ipv6.disable=1 panic=-1 norandmaps"
)
# QEMU 7.2 without KVM garbles the flags of CMPXCHG16B, and kernels after 6.1 depend on them.
_LATER_CMDLINE = f"{CMDLINE} clearcpuid=cx16"
_NEEDED = ("mmdebstrap", "mke2fs", "cpio", "gcc", "tar")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GuestImage:
    """Absolute paths of a built image; `disk` is raw and never written: use it as backing file."""

    kernel: str
    initrd: str
    disk: str
    cmdline: str = CMDLINE
    disk_format: str = "raw"

    def cmdline_under(self, domain_type: str) -> str:
        """The kernel's words in a guest of this type: one that is emulated is told its clock's rate.

        KVM tells it by itself, and better.
        """
        khz = tsc.khz() if domain_type == "qemu" else 0
        return f"{self.cmdline} tsc_early_khz={khz}" if khz else self.cmdline


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of an image: its Slurm release, with Salt or without. LabError for an unknown one."""

    release: str = INSTALLED
    salt: bool = False

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            known = ", ".join(RELEASES)
            raise LabError(f"no guest image has Slurm {self.release}; there are {known}")
        if self.salt and self.release != INSTALLED:
            raise LabError(
                f"Salt is baked into the guest image of Slurm {INSTALLED} only: "
                "take that release, or do without Salt"
            )

    @property
    def suite(self) -> str:
        """The suite of Debian with this release."""
        return SUITES.get(self.release, debian.OWN)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the installed packages, without their dependencies."""
        return (*PACKAGES, *(SALT_PACKAGES if self.salt else ()))

    @property
    def cmdline(self) -> str:
        """The kernel's."""
        return CMDLINE if self.release == INSTALLED else _LATER_CMDLINE

    @property
    def name(self) -> str:
        """The release and a sum that changes whenever something that goes into it changes."""
        digest = hashlib.sha256(repr((self.suite, self.packages, DISK_MB, self.cmdline)).encode())
        if self.salt:
            digest.update(saltimage.ingredients().encode())
        for code in (inspect.getsource(_build_in), inspect.getsource(guestroot)):
            digest.update(code.encode())
        for path in (*sorted(guestroot.GUEST_FILES.iterdir()), HOOK_SOURCE):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.release}-{digest.hexdigest()[:16]}"


USUAL = Recipe()


def find(recipe: Recipe = USUAL) -> GuestImage | None:
    """The cached image of the present recipe, or None when it has to be built first."""
    described = cache_root() / "images" / recipe.name / "image.json"
    return GuestImage(**json.loads(described.read_text())) if described.exists() else None


def build(progress: Progress = lambda line: None, recipe: Recipe = USUAL) -> GuestImage:
    """Return the guest image, building it when the cache has none of this recipe (needs root)."""
    if (image := find(recipe)) is not None:
        return image
    _check_tools()
    images = cache_root() / "images"
    images.mkdir(parents=True, exist_ok=True)
    with (images / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (image := find(recipe)) is not None:
            return image
        clear_builds(images)
        target = images / recipe.name
        work = images / f".building-{target.name}"
        work.mkdir()
        try:
            return _build_in(work, target, progress, recipe)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise LabError("the guest image needs root to be built: run scripts/setup.sh as root")
    missing = [tool for tool in _NEEDED if shutil.which(tool) is None]
    if missing:
        raise LabError(f"the guest image needs {', '.join(missing)}: run scripts/setup.sh")


def _build_in(work: Path, target: Path, progress: Progress, recipe: Recipe) -> GuestImage:
    began_s = time.monotonic()

    def step(text: str) -> None:
        progress(f"guest image of Slurm {recipe.release}: {text} ({time.monotonic() - began_s:.0f} s)")

    root = work / "root"
    step(f"installing packages of Debian {recipe.suite}")
    guestroot.install_packages(root, work / "mmdebstrap.log", recipe.suite, recipe.packages)
    step("adding the guest's own programs")
    guestroot.add_guest_files(root)
    if recipe.salt:
        step("baking Salt")
        saltimage.bake(root)
    step("packing the initial ram disk")
    out = work / "out"
    out.mkdir()
    guestroot.make_initrd(root, work / "initrd", out / "initrd")
    kernel = next((root / "boot").glob("vmlinuz-*"))
    shutil.copyfile(kernel, out / "vmlinuz")
    shutil.rmtree(root / "boot")
    step("writing the disk")
    guestroot.run(
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-O",
        "^has_journal",
        "-m",
        "0",
        "-E",
        "lazy_itable_init=0,root_owner=0:0",
        "-d",
        str(root),
        str(out / "disk.raw"),
        f"{DISK_MB}M",
    )
    image = GuestImage(
        kernel=str(target / "vmlinuz"),
        initrd=str(target / "initrd"),
        disk=str(target / "disk.raw"),
        cmdline=recipe.cmdline,
    )
    (out / "packages.lock").write_text(_packages_of(root))
    (out / "checksums").write_text(checksums(out))
    (out / "image.json").write_text(json.dumps(asdict(image), indent=2) + "\n")
    out.rename(target)
    step("ready")
    return image


def _packages_of(root: Path) -> str:
    """Every package with its exact version: what a later build is compared with."""
    return guestroot.run(
        "dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W", "-f", "${Package} ${Version} ${Architecture}\n"
    )


def checksums(folder: Path) -> str:
    """SHA-256 of the image's parts, one `sum  name` per line as sha256sum writes them."""
    lines = []
    for name in ("vmlinuz", "initrd", "disk.raw", "packages.lock"):
        with (folder / name).open("rb") as part:
            lines.append(f"{hashlib.file_digest(part, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def problems(folder: Path) -> list[str]:
    """Compare an image's parts with its own checksums; one sentence for each difference."""
    listed = folder / "checksums"
    if not listed.exists():
        return [f"{folder} has no checksums; remove it and build it again"]
    try:
        then = listed.read_text(errors="replace").splitlines()
        now = checksums(folder).splitlines()
    except FileNotFoundError as error:
        return [f"{error.filename} is missing; remove {folder} and build it again"]
    except OSError as error:
        return [f"{error.filename} cannot be read: {error.strerror}; run this as root"]
    return [
        f"{folder / line.split()[1]} is not what was built; remove {folder} and build it again"
        for line in now
        if line not in then
    ]


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def main() -> int:
    """`python -m backfill.lab.image`: build (or find) the image and print its description."""
    try:
        image = build(progress=_to_stderr)
    except LabError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(image), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
