"""A machine with an SR-IOV card: QEMU's igb in a guest that sees this machine's files.

Its root is this machine's own, read-only by 9p below a file system in memory: whatever is installed
here, the project and its environment are there, and what it writes is gone when it ends. The kernel
is Debian's with all drivers; the guest image's own has none of cards. Only a later QEMU than this
machine's has the card.
"""

from __future__ import annotations

import fcntl
import hashlib
import lzma
import subprocess
import sys
from pathlib import Path

from backfill.lab import guestroot, roots
from backfill.lab.spec import cache_root
from backfill.lab.stale import clear_builds

REPOSITORY = Path(__file__).parents[2]
SUITE = "trixie"
PACKAGES = ("linux-image-amd64", "kmod", "busybox-static", "initramfs-tools")
MODULES = (
    *("virtio_pci", "9pnet_virtio", "9p", "overlay", "tun", "bridge", "veth"),
    *("igb", "igbvf", "vfio-pci", "vfio_iommu_type1"),
)
CMDLINE = (
    "console=ttyS0 quiet intel_iommu=on mitigations=off audit=0 cryptomgr.notests "
    "random.trust_cpu=on nokaslr norandmaps panic=-1"
)
CARD = "0000:01:00.0"  # behind the only port
FUNCTIONS = 2

_FIRST = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
while read -r module; do insmod "/m/$module"; done </modules
share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,access=any,$3" "$1" "$2"; }
mount -t tmpfs memory /memory
mkdir /memory/upper /memory/work
share root /below ro,cache=loose
mount -t overlay -o lowerdir=/below,upperdir=/memory/upper,workdir=/memory/work overlay /newroot
mkdir -p /newroot/share
share share /newroot/share rw
mount -o move /dev /newroot/dev
mount -o move /proc /newroot/proc
exec /bin/busybox switch_root /newroot /bin/sh /share/second
"""
_SECOND = """
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C HOME=/root
exec </dev/console >/dev/console 2>&1
mount -t sysfs sysfs /sys
for place in /run /dev/shm /dev/pts; do mkdir -p "$place"; done
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
mkdir -p /run/lock
hostname sriov
ip link set lo up
until [ -e /sys/bus/pci/devices/{card}/driver ]; do sleep 0.1; done
echo {functions} >/sys/bus/pci/devices/{card}/sriov_numvfs
cd {repository}
{program} >/share/said 2>&1
echo $? >/share/status
busybox poweroff -f
"""


def kernel_root() -> Path:
    """Debian's kernel with all its drivers; built when the cache has none of this recipe."""
    digest = hashlib.sha256(repr((SUITE, PACKAGES)).encode()).hexdigest()[:16]
    place = cache_root() / "roots" / f"kernel-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            clear_builds(place.parent)
            work = place.parent / f".building-{place.name}"
            log = place.parent / "kernel.log"
            guestroot.install_packages(work, log, SUITE, PACKAGES)
            work.rename(place)
    return place


def make_initrd(root: Path, tree: Path, target: Path) -> None:
    """Write `target`: the drivers, and the program that puts the machine's root together."""
    for directory in ("bin", "dev", "proc", "memory", "below", "newroot", "m"):
        (tree / directory).mkdir(parents=True)
    (tree / "bin/busybox").write_bytes((root / "bin/busybox").read_bytes())
    (tree / "bin/busybox").chmod(0o755)
    (tree / "bin/sh").symlink_to("busybox")
    (tree / "init").write_text(_FIRST)
    (tree / "init").chmod(0o755)
    version = next((root / "lib/modules").iterdir()).name
    ordered: list[str] = []
    for module in MODULES:
        shown = guestroot.run("chroot", str(root), "modprobe", "-S", version, "--show-depends", module)
        for words in map(str.split, shown.splitlines()):
            name = Path(words[1]).name.removesuffix(".xz")
            if words[0] == "insmod" and name not in ordered:
                ordered.append(name)
                packed = (root / words[1].lstrip("/")).read_bytes()
                (tree / "m" / name).write_bytes(lzma.decompress(packed))
    (tree / "modules").write_text("".join(f"{name}\n" for name in ordered))
    names = "\n".join(sorted(str(path.relative_to(tree)) for path in tree.rglob("*")))
    with target.open("wb") as output:
        cpio = ["cpio", "-o", "-H", "newc", "--quiet"]
        subprocess.run(cpio, cwd=tree, input=names.encode(), stdout=output, check=True)


def run_inside(program: str, folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a shell line in such a machine; its exit status, None: it did not end, and what it said.

    `folder` is /share there, for all that is to be seen afterwards.
    """
    kernel, later = kernel_root(), roots.build("debian-13")
    share = folder / "share"
    share.mkdir()
    make_initrd(kernel, folder / "tree", folder / "initrd")
    values = {"card": CARD, "functions": FUNCTIONS, "repository": REPOSITORY, "program": program}
    (share / "second").write_text(_SECOND.format(**values))
    libraries = later / "usr/lib/x86_64-linux-gnu"
    argv = [
        # Nothing of it outlives whoever began it, and it has no network but its own.
        *("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--pid", "--fork", "--kill-child"),
        *(str(later / "usr/lib64/ld-linux-x86-64.so.2"), "--library-path", str(libraries)),
        *(str(later / "usr/bin/qemu-system-x86_64"), "-L", str(later / "usr/share/qemu")),
        *("-L", str(later / "usr/share/seabios"), "-L", str(later / "usr/lib/ipxe/qemu")),
        # A second CPU's timer stops now and then under emulation.
        *("-accel", "tcg,tb-size=512", "-machine", "q35", "-cpu", "max", "-smp", "1"),
        *("-m", "3072", "-nodefaults", "-display", "none", "-no-reboot"),
        *("-device", "intel-iommu"),
        *("-kernel", str(next((kernel / "boot").glob("vmlinuz-*")))),
        *("-initrd", str(folder / "initrd"), "-append", CMDLINE),
        *("-serial", f"file:{folder / 'console'}"),
        *_shared("root", "/", ",readonly=on,multidevs=remap"),
        *_shared("share", str(share)),
        *("-device", "pcie-root-port,id=rp1,chassis=1", "-device", "igb,bus=rp1"),
    ]
    with (folder / "emulator").open("w") as output:
        subprocess.run(argv, timeout=limit_s, stdout=output, stderr=output, check=False)
    status = share / "status"
    texts = [folder / "emulator", folder / "console", share / "said"]
    said = "".join(text.read_text(errors="replace") for text in texts if text.exists())
    return (int(status.read_text()) if status.exists() else None), said


def _shared(name: str, path: str, more: str = "") -> tuple[str, ...]:
    """A folder of this machine that is seen in the other one."""
    return (
        *("-fsdev", f"local,id={name},path={path},security_model=none{more}"),
        *("-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"),
    )


def python(arguments: str) -> str:
    """The shell line that runs this environment's Python."""
    return f"{sys.executable} {arguments}"
