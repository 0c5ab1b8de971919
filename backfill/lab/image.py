"""The guest image: a minimal Debian with slurmd and munge, built once and cached by its recipe.

There are two: without Salt, and with Salt baked in (`salt=True`), which is three times as large.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from backfill.lab import saltimage
from backfill.lab.spec import LabError, cache_root
from backfill.lab.stale import clear_builds

SUITE = "bookworm"
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
)
SALT_PACKAGES = ("python3",)
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio_balloon")
DISK_MB = 1024
CMDLINE = (
    "quiet console=ttyS0 root=/dev/vda rw tsc=reliable no_timer_check mitigations=off audit=0 "
    "selinux=0 apparmor=0 cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 nokaslr "
    "8250.nr_uarts=1 ipv6.disable=1 panic=-1"
)
GUEST_FILES = Path(__file__).parent / "guest"
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


def recipe_hash(salt: bool = False) -> str:
    """A name for the image that changes whenever something that goes into it changes."""
    digest = hashlib.sha256(repr((SUITE, PACKAGES, MODULES, DISK_MB, CMDLINE)).encode())
    if salt:
        digest.update(repr((SALT_PACKAGES, saltimage.ingredients())).encode())
    for step in (_build_in, _install_packages, _add_guest_files, _make_initrd):
        digest.update(inspect.getsource(step).encode())
    for path in sorted(GUEST_FILES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def find(salt: bool = False) -> GuestImage | None:
    """The cached image of the present recipe, or None when it has to be built first."""
    described = cache_root() / "images" / recipe_hash(salt) / "image.json"
    return GuestImage(**json.loads(described.read_text())) if described.exists() else None


def build(progress: Progress = lambda line: None, salt: bool = False) -> GuestImage:
    """Return the guest image, building it when the cache has none of this recipe (needs root)."""
    if (image := find(salt)) is not None:
        return image
    _check_tools()
    images = cache_root() / "images"
    images.mkdir(parents=True, exist_ok=True)
    with (images / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (image := find(salt)) is not None:
            return image
        clear_builds(images)
        target = images / recipe_hash(salt)
        work = images / f".building-{target.name}"
        work.mkdir()
        try:
            return _build_in(work, target, progress, salt)
        finally:
            shutil.rmtree(work, ignore_errors=True)


def _check_tools() -> None:
    if os.geteuid() != 0:
        raise LabError("the guest image needs root to be built: run scripts/setup.sh as root")
    missing = [tool for tool in _NEEDED if shutil.which(tool) is None]
    if missing:
        raise LabError(f"the guest image needs {', '.join(missing)}: run scripts/setup.sh")


def _build_in(work: Path, target: Path, progress: Progress, salt: bool) -> GuestImage:
    began_s = time.monotonic()

    def step(text: str) -> None:
        progress(f"guest image: {text} ({time.monotonic() - began_s:.0f} s)")

    root = work / "root"
    step("installing Debian packages")
    _install_packages(root, work / "mmdebstrap.log", SALT_PACKAGES if salt else ())
    step("adding the guest's own programs")
    _add_guest_files(root)
    if salt:
        step("baking Salt")
        saltimage.bake(root)
    step("packing the initial ram disk")
    out = work / "out"
    out.mkdir()
    _make_initrd(root, work / "initrd", out / "initrd")
    kernel = next((root / "boot").glob("vmlinuz-*"))
    shutil.copyfile(kernel, out / "vmlinuz")
    shutil.rmtree(root / "boot")
    step("writing the disk")
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-E",
         "lazy_itable_init=0,root_owner=0:0", "-d", str(root), str(out / "disk.raw"),
         f"{DISK_MB}M")  # fmt: skip
    image = GuestImage(
        kernel=str(target / "vmlinuz"),
        initrd=str(target / "initrd"),
        disk=str(target / "disk.raw"),
    )
    (out / "packages.lock").write_text(_packages_of(root))
    (out / "checksums").write_text(checksums(out))
    (out / "image.json").write_text(json.dumps(asdict(image), indent=2) + "\n")
    out.rename(target)
    step("ready")
    return image


def _packages_of(root: Path) -> str:
    """Every package with its exact version: what a later build is compared with."""
    return _run("dpkg-query", f"--admindir={root}/var/lib/dpkg", "-W",
                "-f", "${Package} ${Version} ${Architecture}\n")  # fmt: skip


def checksums(folder: Path) -> str:
    """SHA-256 of the image's parts, one `sum  name` per line as sha256sum writes them."""
    lines = []
    for name in ("vmlinuz", "initrd", "disk.raw", "packages.lock"):
        with (folder / name).open("rb") as part:
            lines.append(f"{hashlib.file_digest(part, 'sha256').hexdigest()}  {name}\n")
    return "".join(lines)


def problems(folder: Path) -> list[str]:
    """What differs between an image's parts and its own checksums, one sentence each."""
    listed = folder / "checksums"
    if not listed.exists():
        return [f"{folder} has no checksums; remove it and build it again"]
    try:
        now = checksums(folder).splitlines()
    except FileNotFoundError as error:
        return [f"{error.filename} is missing; remove {folder} and build it again"]
    then = listed.read_text().splitlines()
    return [
        f"{folder / old.split()[1]} is not what was built; remove {folder} and build it again"
        for old, new in zip(then, now, strict=True)
        if old != new
    ]


def _install_packages(root: Path, log: Path, more: tuple[str, ...]) -> None:
    # Nothing in the guest uses Debian's own initrd, so its generator is told to do nothing.
    quiet = (
        'mkdir -p "$1/etc/initramfs-tools" && '
        'echo "update_initramfs=no" > "$1/etc/initramfs-tools/update-initramfs.conf"'
    )
    excluded = ("man", "doc", "locale", "info", "lintian", "bug")
    wanted = ",".join((*PACKAGES, *more))
    argv = [
        "mmdebstrap", "--variant=essential", "--mode=root", f"--include={wanted}",
        "--aptopt=APT::Install-Recommends false", '--aptopt=Acquire::Languages "none"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in excluded),
        "--dpkgopt=force-confold", f"--essential-hook={quiet}", SUITE, str(root),
    ]  # fmt: skip
    with log.open("w") as output:
        done = subprocess.run(argv, stdout=output, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        last = " / ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise LabError(f"mmdebstrap could not install the guest's packages: {last}")


def _add_guest_files(root: Path) -> None:
    sbin = root / "usr/local/sbin"
    sbin.mkdir(parents=True, exist_ok=True)
    for name, where in (
        *((name, sbin / name) for name in ("backfill-init", "backfill-service", "backfill-salt")),
        ("shutdown", root / "usr/sbin/shutdown"),
        ("inittab", root / "etc/inittab"),
    ):
        shutil.copyfile(GUEST_FILES / name, where)
        where.chmod(0o755)
    for program in ("wake", "jobs", "fork", "prove", "stated"):
        _run("gcc", "-O2", "-static", "-Wall", "-Werror", "-o", str(sbin / f"backfill-{program}"),
             str(GUEST_FILES / f"{program}.c"), "-lmunge", "-lm")  # fmt: skip
    (root / "etc/backfill").mkdir(exist_ok=True)
    (root / "etc/nsswitch.conf").write_text(
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\n"
    )
    # Collecting jitter for libgcrypt costs munged a second without hardware help; urandom is good.
    (root / "etc/gcrypt").mkdir(exist_ok=True)
    (root / "etc/gcrypt/random.conf").write_text("disable-jent\nonly-urandom\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").touch()
    # Its configuration comes with the seed, or is written at boot.
    (root / "etc/chrony/chrony.conf").write_text("")
    (root / "etc/fstab").write_text("")
    for directory in ("var/spool/slurmd", "var/log/slurm", "mnt/shared"):
        (root / directory).mkdir(parents=True, exist_ok=True)


def _make_initrd(root: Path, tree: Path, target: Path) -> None:
    for directory in ("bin", "dev", "proc", "sys", "newroot", "m"):
        (tree / directory).mkdir(parents=True)
    shutil.copy2(root / "bin/busybox", tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    shutil.copyfile(GUEST_FILES / "initrd-init", tree / "init")
    (tree / "init").chmod(0o755)
    version = next((root / "lib/modules").iterdir()).name
    ordered: list[str] = []
    for module in MODULES:
        shown = _run("chroot", str(root), "modprobe", "-S", version, "--show-depends", module)
        for line in shown.splitlines():
            words = line.split()
            name = Path(words[1]).name
            if words[0] == "insmod" and name not in ordered:
                ordered.append(name)
                shutil.copyfile(root / words[1].lstrip("/"), tree / "m" / name)
    (tree / "modules").write_text("".join(f"{name}\n" for name in ordered))
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    with target.open("wb") as packed:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=tree, input="\n".join(names).encode(), stdout=packed, check=True,
        )  # fmt: skip


def _run(*argv: str) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed while building the guest image: {done.stderr.strip()}")
    return done.stdout


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
