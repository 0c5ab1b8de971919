"""The steps by which a guest's root comes to be: packages, our own programs, initial ram disk."""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

from backfill.drivers.libvirt.guest.seed import HOOK_FILE, HOOK_PROGRAM
from backfill.drivers.slurm.hooks.build import build_guest_hook
from backfill.lab import debian
from backfill.lab.spec import LabError

GUEST_FILES = Path(__file__).parent / "guest"
# Any of them may be part of the kernel itself.
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "virtio_console", "virtio_balloon", "ext4")


def install_packages(root: Path, log: Path, suite: str, packages: tuple[str, ...]) -> None:
    """Debian itself, a kernel included."""
    # Nothing in the guest uses Debian's own initrd, so its generator is told to do nothing.
    quiet = (
        'mkdir -p "$1/etc/initramfs-tools" && '
        'echo "update_initramfs=no" > "$1/etc/initramfs-tools/update-initramfs.conf"'
    )
    how = (
        *debian.options(suite, "man", "doc", "locale", "info", "lintian", "bug"),
        "--dpkgopt=force-confold",
        f"--essential-hook={quiet}",
    )
    debian.install(suite, packages, how, root, log)


def add_guest_files(root: Path) -> None:
    """Our own programs, which need nothing of the root, and what they expect there."""
    sbin = root / "usr/local/sbin"
    sbin.mkdir(parents=True, exist_ok=True)
    for name, where in (
        *(
            (name, sbin / name)
            for name in ("backfill-init", "backfill-service", "backfill-salt", "backfill-key")
        ),
        ("shutdown", root / "usr/sbin/shutdown"),
        ("inittab", root / "etc/inittab"),
    ):
        shutil.copyfile(GUEST_FILES / name, where)
        where.chmod(0o755)
    for program in ("wake", "jobs", "become", "prove", "stated"):
        run(
            "gcc",
            "-O2",
            "-static",
            "-Wall",
            "-Werror",
            "-o",
            str(sbin / f"backfill-{program}"),
            str(GUEST_FILES / f"{program}.c"),
            "-lmunge",
            "-lm",
        )
    run(
        "gcc",
        "-O2",
        "-fPIC",
        "-shared",
        "-Wall",
        "-Werror",
        "-o",
        str(root / "usr/local/lib/backfill-hold.so"),
        str(GUEST_FILES / "hold.c"),
    )
    build_guest_hook(root / HOOK_PROGRAM[1:], HOOK_FILE, "/var/log/slurm/backfill-hook.log")
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


def make_initrd(root: Path, tree: Path, target: Path) -> None:
    """Write `target`: the modules that find the disk, and the program that mounts it."""
    for directory in ("bin", "dev", "proc", "sys", "newroot", "m"):
        (tree / directory).mkdir(parents=True)
    shutil.copy2(root / "bin/busybox", tree / "bin/busybox")
    (tree / "bin/sh").symlink_to("busybox")
    shutil.copyfile(GUEST_FILES / "initrd-init", tree / "init")
    (tree / "init").chmod(0o755)
    version = next((root / "lib/modules").iterdir()).name
    ordered: list[str] = []
    for module in MODULES:
        shown = run("chroot", str(root), "modprobe", "-S", version, "--show-depends", module)
        for line in shown.splitlines():
            words = line.split()
            name = Path(words[1]).name.removesuffix(".xz")
            if words[0] == "insmod" and name not in ordered:
                ordered.append(name)
                (tree / "m" / name).write_bytes(_unpacked(root / words[1].lstrip("/")))
    (tree / "modules").write_text("".join(f"{name}\n" for name in ordered))
    names = sorted(str(path.relative_to(tree)) for path in tree.rglob("*"))
    with target.open("wb") as packed:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=tree,
            input="\n".join(names).encode(),
            stdout=packed,
            check=True,
        )


def _unpacked(module: Path) -> bytes:
    """Done once, here: in a guest, which may be emulated, every boot would pay for it."""
    found = module.read_bytes()
    return lzma.decompress(found) if module.suffix == ".xz" else found


def run(*argv: str) -> str:
    """Run the command and return its output; LabError with its complaint if it failed."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LabError(f"{argv[0]} failed while building the guest image: {done.stderr.strip()}")
    return done.stdout
