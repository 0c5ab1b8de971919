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
RING_SOURCE = Path(__file__).parent / "jobs" / "ring.c"
RING = "/usr/local/bin/ring"
_LIBRARIES = ("-lmunge", "-lm")
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


def can_compile() -> bool:
    """Return True if our programs can be linked here: with gcc, and the headers and libraries they need."""
    argv = ["gcc", "-static", "-include", "munge.h", "-x", "c", "-o", "/dev/null", "-", *_LIBRARIES]
    done = subprocess.run(
        argv, input="int main(void) { return 0; }\n", text=True, capture_output=True, check=False
    )
    return done.returncode == 0


def add_programs(root: Path) -> None:
    """Our own programs, which need nothing of the root, and what they and our packages expect there."""
    sbin = root / "usr/local/sbin"
    sbin.mkdir(parents=True, exist_ok=True)
    for name in ("backfill-key", "backfill-devices"):
        _copy(name, sbin / name)
    for program in ("wake", "jobs", "become", "prove", "stated", "fence"):
        compile_program(program, sbin)
    compile_program("root", root / "usr/local/bin")
    build_guest_hook(root / HOOK_PROGRAM[1:], HOOK_FILE, "/var/log/slurm/backfill-hook.log")
    (root / "etc/backfill").mkdir(exist_ok=True)
    # Collecting jitter for libgcrypt costs munged a second without hardware help; urandom is good.
    (root / "etc/gcrypt").mkdir(exist_ok=True)
    (root / "etc/gcrypt/random.conf").write_text("disable-jent\nonly-urandom\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").touch()
    # munge's package makes one; a guest's comes with its seed, or later.
    (root / "etc/munge/munge.key").unlink(missing_ok=True)
    # Its configuration comes with the seed, or is written at boot.
    (root / "etc/chrony/chrony.conf").write_text("")
    (root / "etc/fstab").write_text("")
    for directory in ("var/spool/slurmd", "var/log/slurm", "mnt/shared"):
        (root / directory).mkdir(parents=True, exist_ok=True)


def compile_program(name: str, folder: Path, *options: str) -> Path:
    """Compile one of our static programs into a folder; return where it is."""
    program = folder / f"backfill-{name}"
    flags = ("-O2", "-static", "-Wall", "-Werror", *options)
    run("gcc", *flags, "-o", str(program), str(GUEST_FILES / f"{name}.c"), *_LIBRARIES)
    return program


def add_init(root: Path) -> None:
    """Our own init, which is quicker than any other, and what it needs."""
    sbin = root / "usr/local/sbin"
    for name in ("backfill-init", "backfill-service", "backfill-salt"):
        _copy(name, sbin / name)
    _copy("shutdown", root / "usr/sbin/shutdown")
    _copy("inittab", root / "etc/inittab")
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
    (root / "etc/nsswitch.conf").write_text(
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\nservices: files\n"
    )


def _copy(name: str, where: Path) -> None:
    where.unlink(missing_ok=True)  # a link there would lead out of the root
    shutil.copyfile(GUEST_FILES / name, where)
    where.chmod(0o755)


def add_ring(root: Path) -> None:
    """Compile the MPI program whose result is known beforehand, by the root's own compiler."""
    source = root / RING_SOURCE.name
    shutil.copyfile(RING_SOURCE, source)
    run("chroot", str(root), "mpicc", "-O2", "-Wall", "-Werror", "-o", RING, f"/{source.name}")
    source.unlink()


def add_user(root: Path, line: str) -> None:
    """Make a user known, by its line of passwd, and a group of the same name."""
    name, _, _, group, *_ = line.split(":")
    for file, text in (("passwd", line), ("group", f"{name}:x:{group}:")):
        with (root / "etc" / file).open("a") as known:
            known.write(text + "\n")


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
