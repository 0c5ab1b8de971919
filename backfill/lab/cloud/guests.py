"""A compute host with real guests in the test cloud: libvirtd, a bridge, and an image that boots.

QEMU runs them without KVM. The image is the labs' own; what differs is the first program, which
takes the identity out of Nova's config drive instead of a seed.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

from backfill.lab.image import GuestImage
from backfill.lab.layout import write_libvirt, write_users
from backfill.lab.mounts import bind, mount
from backfill.lab.service import Service
from backfill.lab.spec import CLOUD_ADDRESS, LIBVIRT_PORT, LabError, hardware_address

HOST, ZONE = "c3", "guests"
URI = "qemu:///system"
BRIDGE = "br-cloud"
# Images in Glance: the labs' guest with its slurmd, and one that only counts on its console.
NODE, COUNTER = "guest", "counter"
_TOOLS = ("libvirtd", "virsh", "qemu-system-x86_64", "qemu-img", "genisoimage", "cpio")
_BINDINGS = ("libvirt", "libvirtmod", "libvirt_qemu", "libvirtmod_qemu")
_FIRST = Path(__file__).parent / "inside" / "guest-init"


def check_machine() -> None:
    """LabError: what is missing on this machine."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    missing = [tool for tool in _TOOLS if shutil.which(tool, path=path) is None]
    missing += ["libvirt's Python bindings"] if importlib.util.find_spec("libvirt") is None else []
    if missing:
        raise LabError(f"a cloud with real guests needs {', '.join(missing)}: run scripts/setup.sh")


def prepare(root: Path) -> None:
    """Inside the cloud's namespaces: libvirt's own directories, a bridge, bindings for Nova."""
    mount("sysfs", "/sys", "sysfs")
    home = root / "libvirt"
    home.mkdir()
    write_libvirt(home, cgroups=False, user="root")
    write_users(home)
    for name in ("passwd", "group"):
        bind(str(home / name), f"/etc/{name}")
    for part, target in (("etc", "/etc"), ("lib", "/var/lib"), ("log", "/var/log"), ("cache", "/var/cache")):
        bind(str(home / f"libvirt-{part}"), f"{target}/libvirt")
    for directory in ("libvirt", "lock"):
        Path("/run", directory).mkdir(exist_ok=True)
    for words in (
        (
            "add",
            BRIDGE,
            "address",
            hardware_address(CLOUD_ADDRESS),
            "type",
            "bridge",
            "forward_delay",
            "0",
            "stp_state",
            "0",
        ),
        ("set", BRIDGE, "up"),
    ):
        subprocess.run(["ip", "link", *words], check=True)
    for name in _BINDINGS:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin:
            shutil.copy(found.origin, root / "plugins")


def libvirtd() -> Service:
    """Guests are below everything else that the machine does."""
    return Service(
        "libvirtd",
        ("/usr/sbin/libvirtd", "--listen"),
        ready=f"tcp:127.0.0.1:{LIBVIRT_PORT}",
        warm=("virsh", "-q", "-c", URI, "domcapabilities", "--virttype", "qemu"),
        nice=10,
    )


def make_image(guest: GuestImage, target: Path) -> None:
    """Kernel, initial ram disk and disk of the labs' image, as Glance is to get them."""
    tree = target / "first"
    tree.mkdir(parents=True)
    shutil.copy(_FIRST, tree / "init")
    (tree / "init").chmod(0o755)
    packed = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=b"init", stdout=subprocess.PIPE, check=True
    ).stdout
    # The kernel unpacks one archive after the other: the later file of a name stays.
    (target / "initrd").write_bytes(Path(guest.initrd).read_bytes() + packed)
    shutil.copy(guest.kernel, target / "kernel")
    subprocess.run(
        [
            "qemu-img",
            "convert",
            "-q",
            "-f",
            guest.disk_format,
            "-O",
            "qcow2",
            guest.disk,
            str(target / "disk.qcow2"),
        ],
        check=True,
    )
    (target / "cmdline").write_text(guest.cmdline_under("qemu"))
