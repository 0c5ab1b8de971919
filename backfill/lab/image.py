"""The guest image: a minimal Debian with slurmd and munge, built once and cached by its recipe.

There is one for every Slurm release, all of it from that release's Debian suite, the kernel too;
and of the installed release one with Salt baked in, which is three times as large, and one with MPI.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from backfill.drivers.slurm.hooks.build import HOOK_SOURCE
from backfill.lab import debian, guestroot, saltimage, tsc
from backfill.lab.roots import INSTALLED, RELEASES, SUITES
from backfill.lab.spec import CONDOR_SLURM, JOB_USER_LINE, LabError, LabPermissionError, cache_root
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
CONDOR_PACKAGES = ("htcondor", "python3-minimal")
# libpmix2: what slurmstepd loads for `srun --mpi=pmix`. The compiler stays, for programs of a user's own.
MPI_PACKAGES = ("openmpi-bin", "libopenmpi-dev", "libpmix2", "hpcc", "gcc", "libc6-dev")
DISK_MB = 1024
LARGER_DISK_MB = 2048
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
# Programs that a build calls, and the Debian packages that have them.
_NEEDED = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "cpio": "cpio", "gcc": "gcc", "tar": "tar"}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class GuestImage:
    """Absolute paths of a built image; `disk` is raw and never written: use it as backing file."""

    kernel: str
    initrd: str
    disk: str
    cmdline: str = CMDLINE
    disk_format: str = "raw"
    emulated: str = ""  # further words for a kernel that runs without KVM

    def cmdline_under(self, domain_type: str) -> str:
        """Return the kernel's words in a guest of this type: an emulated one is told its clock's rate.

        KVM tells it by itself, and better.
        """
        if domain_type != "qemu":
            return self.cmdline
        khz = tsc.khz()
        return " ".join(filter(None, (self.cmdline, self.emulated, f"tsc_early_khz={khz}" if khz else "")))


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of an image: its Slurm release, with Salt, with HTCondor, with MPI, or with none of them.

    LabError for one that cannot be.
    """

    release: str = INSTALLED
    salt: bool = False
    condor: bool = False
    mpi: bool = False

    def __post_init__(self) -> None:
        if self.release not in RELEASES:
            known = ", ".join(RELEASES)
            raise LabError(f"no guest image has Slurm {self.release}; there are {known}")
        if self.salt and self.release != INSTALLED:
            raise LabError(
                f"Salt is baked into the guest image of Slurm {INSTALLED} only: "
                "take that release, or do without Salt"
            )
        if self.condor and self.release != CONDOR_SLURM:
            raise LabError(
                f"HTCondor is in the guest image of Slurm {CONDOR_SLURM} only: "
                "take that release, or do without HTCondor"
            )
        if self.mpi and self.release != INSTALLED:
            raise LabError(
                f"MPI is in the guest image of Slurm {INSTALLED} only: take that release, or do without MPI"
            )

    @property
    def suite(self) -> str:
        """The suite of Debian with this release."""
        return SUITES.get(self.release, debian.OWN)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the installed packages, without their dependencies."""
        condor = CONDOR_PACKAGES if self.condor else ()
        mpi = MPI_PACKAGES if self.mpi else ()
        return (*PACKAGES, *(SALT_PACKAGES if self.salt else ()), *condor, *mpi)

    @property
    def disk_mb(self) -> int:
        """Return the size of its disk, of which a file takes only what is used."""
        return LARGER_DISK_MB if self.condor or self.mpi else DISK_MB

    @property
    def cmdline(self) -> str:
        """The kernel's."""
        return CMDLINE if self.release == INSTALLED else _LATER_CMDLINE

    @property
    def name(self) -> str:
        """The release and a sum that changes whenever something that goes into it changes."""
        digest = hashlib.sha256(repr((self.suite, self.packages, self.disk_mb, self.cmdline)).encode())
        if self.salt:
            digest.update(saltimage.ingredients().encode())
        if self.mpi:
            digest.update(guestroot.RING_SOURCE.read_bytes())
        for code in (_build_in, pack, guestroot):
            digest.update(inspect.getsource(code).encode())
        for path in (*sorted(guestroot.GUEST_FILES.iterdir()), HOOK_SOURCE):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return f"{self.release}-{digest.hexdigest()[:16]}"


USUAL = Recipe()


def image_folder() -> Path:
    """Return the directory with a folder for each image that was built."""
    return cache_root() / "images"


def find(recipe: Recipe = USUAL) -> GuestImage | None:
    """Return the cached image of the present recipe, or None when it has to be built first."""
    return cached(recipe.name)


def cached(name: str) -> GuestImage | None:
    """Return the image of this name in the cache, or None."""
    described = image_folder() / name / "image.json"
    return GuestImage(**json.loads(described.read_text())) if described.exists() else None


def build(progress: Progress = lambda line: None, recipe: Recipe = USUAL) -> GuestImage:
    """Return the guest image, building it when the cache has none of this recipe (needs root)."""
    return cached_or_built(recipe.name, lambda work, target: _build_in(work, target, progress, recipe))


def cached_or_built(name: str, make: Callable[[Path, Path], GuestImage]) -> GuestImage:
    """Return the image of this name; one that is not in the cache yet is made there.

    `make` is given an empty folder to work in, and the one in which the image will be. LabError
    before any work where a program is missing.
    """
    if (image := cached(name)) is not None:
        return image
    _check_tools()
    images = image_folder()
    images.mkdir(parents=True, exist_ok=True)
    with (images / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (image := cached(name)) is not None:
            return image
        clear_builds(images)
        target = images / name
        work = images / f".building-{target.name}"
        work.mkdir()
        try:
            with open_to_all():
                return make(work, target)
        finally:
            shutil.rmtree(work, ignore_errors=True)


@contextmanager
def open_to_all() -> Iterator[None]:
    """Let what is made inside be read by all, whatever our umask: guests' users, and QEMU, are not root."""
    before = os.umask(0o022)
    try:
        yield
    finally:
        os.umask(before)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise LabPermissionError("the guest image needs root to be built: run scripts/setup.sh as root")
    missing = [package for tool, package in _NEEDED.items() if shutil.which(tool) is None]
    if "gcc" not in missing and not guestroot.can_compile():
        missing += ["libc6-dev", "libmunge-dev"]
    if missing:
        listed = " ".join(missing)
        raise LabError(f"the guest image cannot be built without {listed}: apt-get install {listed}")


def _build_in(work: Path, target: Path, progress: Progress, recipe: Recipe) -> GuestImage:
    began_s = time.monotonic()

    def step(text: str) -> None:
        progress(f"guest image of Slurm {recipe.release}: {text} ({time.monotonic() - began_s:.0f} s)")

    root = work / "root"
    step(f"installing packages of Debian {recipe.suite}")
    guestroot.install_packages(root, work / "mmdebstrap.log", recipe.suite, recipe.packages)
    step("adding the guest's own programs")
    guestroot.add_programs(root)
    guestroot.add_init(root)
    if recipe.salt:
        step("baking Salt")
        saltimage.bake(root)
    if recipe.mpi:
        step("compiling an MPI program")
        guestroot.add_ring(root)
    if recipe.condor:
        # A daemon asks who it runs as; Slurm's jobs need no such entry.
        guestroot.add_user(root, JOB_USER_LINE)
    described = GuestImage(
        kernel=str(target / "vmlinuz"),
        initrd=str(target / "initrd"),
        disk=str(target / "disk.raw"),
        cmdline=recipe.cmdline,
    )
    return pack(work, target, described, recipe.disk_mb, step)


def pack(work: Path, target: Path, described: GuestImage, disk_mb: int, step: Progress) -> GuestImage:
    """Make an image of `work`/root, which loses its kernel by that, and move it to `target`."""
    root = work / "root"
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
        f"{disk_mb}M",
    )
    (out / "packages.lock").write_text(_packages_of(root))
    (out / "checksums").write_text(checksums(out))
    (out / "image.json").write_text(json.dumps(asdict(described), indent=2) + "\n")
    out.rename(target)
    step("ready")
    return described


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
    try:
        if not folder.is_dir():
            return [f"there is no folder {folder}; check the path"]
        if not listed.exists():
            return [f"{folder} has no checksums; remove it and build it again"]
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
