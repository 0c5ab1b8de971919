"""Looks into the disk of a guest image without mounting it: what instances need, what makes a user root.

Needs no root and changes nothing: debugfs reads the file system. It has to be ext2 to ext4 that begins
with the disk's first byte, as a guest that boots directly has it, in a file that is not qcow2.
"""

from __future__ import annotations

import re
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from backfill.lab.spec import LabError


class FlawWeight(StrEnum):
    """How much a finding matters."""

    LACK = "lack"  # no instance of this image is ever released
    DANGER = "danger"  # a user could become root, who holds the cluster's key
    ADVICE = "advice"  # something that not every site uses does not work


@dataclass(frozen=True, slots=True)
class ImageFlaw:
    """What was found, why it matters, what mends it."""

    weight: FlawWeight
    what: str
    why: str
    mend: str


_SBIN = "/usr/local/sbin"
_BUILD = "compile it from backfill/lab/guest, or build the image by: backfill image build --profile site"
# Places of a program, any of which will do; why it is needed; what brings it.
_NEEDED = (
    (("/usr/sbin/slurmd",), "no node registers without slurmd", "install slurmd"),
    (
        ("/usr/sbin/qemu-ga", "/usr/bin/qemu-ga"),
        "nobody can ask the guest anything",
        "install qemu-guest-agent",
    ),
    ((f"{_SBIN}/backfill-prove",), "no node is released unless it proves itself", _BUILD),
    ((f"{_SBIN}/backfill-wake",), "the clock of a guest that stood still stays behind", _BUILD),
    ((f"{_SBIN}/backfill-jobs",), "nobody sees whether jobs go on after a return", _BUILD),
)
_USEFUL = (
    ((f"{_SBIN}/backfill-fence",), "jobs whose patience is over end with all others of their guest", _BUILD),
    ((f"{_SBIN}/backfill-become",), "no instant clone can be made of it", _BUILD),
    ((f"{_SBIN}/backfill-hook",), "with hooks on the hosts no job waits for its devices", _BUILD),
    ((f"{_SBIN}/backfill-key",), "in a cloud, or with Slurm's own keys, guests get no key later", _BUILD),
    (("/usr/local/bin/backfill-root",), "no job runs in a root file system of its user's own", _BUILD),
    (("/usr/sbin/chronyd", "/sbin/chronyd"), "it cannot follow a time server", "install chrony"),
)
_MUNGED = ("/usr/sbin/munged",)
_AUTH_SLURM = (
    "/usr/lib/x86_64-linux-gnu/slurm-wlm/auth_slurm.so",
    "/usr/lib64/slurm/auth_slurm.so",
    "/usr/lib/slurm/auth_slurm.so",
)
_SUDO = ("/usr/bin/sudo", "/usr/bin/doas", "/usr/bin/pkexec")
_SSHD = ("/usr/sbin/sshd",)
_PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/local", "/opt")
_FOLDERS = ("/bin", "/sbin", "/lib")  # of systems where they are no links
_MAGIC_AT, _MAGIC = 0x438, b"\x53\xef"
_ENTRY = re.compile(r"/(\d+)/(\d+)/(\d+)/(\d+)/(.*)/(\d*)/")


class Disk:
    """The files of a disk. LabError: it cannot be looked into."""

    def __init__(self, path: Path) -> None:
        if shutil.which("debugfs") is None:
            raise LabError("disks are looked into by debugfs, which is not here: apt install e2fsprogs")
        try:
            with path.open("rb") as file:
                start = file.read(_MAGIC_AT + len(_MAGIC))
        except OSError as error:
            raise LabError(f"{path} cannot be read: {error.strerror}; name the image's disk") from error
        if start.startswith(b"QFI\xfb"):
            raise LabError(f"{path} is qcow2; look into a copy: qemu-img convert -O raw {path} COPY")
        if start[_MAGIC_AT:] != _MAGIC:
            raise LabError(f"{path} has no ext2, ext3 or ext4 at its start; boot it: backfill doctor --boot")
        self._path = path

    def there(self, *paths: str) -> bool:
        """Return True if one of these is there."""
        return any("File not found" not in said for said in self._ask([f"stat {path}" for path in paths]))

    def text(self, path: str) -> str:
        """Return what is in a file; empty where there is none."""
        (said,) = self._ask([f"cat {path}"])
        return "" if "File not found" in said else said

    def set_id(self) -> list[str]:
        """Programs that run with their owner's rights, or their group's."""
        found, folders = [], [*_PROGRAMS, *_FOLDERS]
        while folders:
            asked = [f"ls -p {folder}" for folder in folders]
            below: list[str] = []
            for folder, said in zip(folders, self._ask(asked), strict=True):
                for mode, name in _entries(said):
                    path = f"{folder}/{name}"
                    if stat.S_ISDIR(mode):
                        below.append(path)
                    elif stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
                        found.append(path)
            folders = below
        return sorted(found)

    def _ask(self, orders: Sequence[str]) -> list[str]:
        """Return what debugfs says to each of them."""
        done = subprocess.run(
            ["debugfs", "-f", "-", str(self._path)],
            input="".join(f"{order}\n" for order in orders),
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        # Its complaints come beside its answers, in another stream: so each order is asked for by itself
        # where one of them has failed.
        _, *said = re.split(r"^debugfs: .*\n", f"\n{done.stdout}", flags=re.M)
        if len(said) != len(orders):
            raise LabError(f"{self._path} cannot be looked into: {done.stderr.strip()[-200:]}")
        failed = {
            match[1] for match in re.finditer(r"^(\S+): File not found by ext2_lookup", done.stderr, re.M)
        }
        return [
            "File not found" if order.split()[1] in failed else answer
            for order, answer in zip(orders, said, strict=True)
        ]


def _entries(listing: str) -> Iterator[tuple[int, str]]:
    """Mode and name of each entry of a folder, itself and the one above left out."""
    for line in listing.splitlines():
        match = _ENTRY.fullmatch(line.strip())
        if match is not None and match[5] not in (".", ".."):
            yield int(match[2], 8), match[5]


def look_into(path: Path) -> list[ImageFlaw]:
    """Everything that is not as an instance needs it. LabError: nothing can be said of this disk."""
    disk = Disk(path)
    found = [*_missing(disk, FlawWeight.LACK, _NEEDED), *_missing(disk, FlawWeight.ADVICE, _USEFUL)]
    if not disk.there(*_MUNGED, *_AUTH_SLURM):
        why = "Slurm believes nothing that such a guest says"
        found.insert(
            0, ImageFlaw(FlawWeight.LACK, "neither munged nor auth_slurm.so is there", why, "install munge")
        )
    return [*found, *_ways_to_root(disk)]


def _missing(
    disk: Disk, weight: FlawWeight, wanted: Iterable[tuple[tuple[str, ...], str, str]]
) -> Iterator[ImageFlaw]:
    for places, why, mend in wanted:
        if not disk.there(*places):
            yield ImageFlaw(weight, f"{' or '.join(places)} is missing", why, mend)


def _ways_to_root(disk: Disk) -> Iterator[ImageFlaw]:
    for program in (*_SUDO, *_SSHD):
        if disk.there(program):
            why = "logins and rights of others have no place in a guest, whose root holds the cluster's key"
            yield ImageFlaw(FlawWeight.DANGER, f"{program} is there", why, "leave its package out")
    own = disk.set_id()
    if own:
        shown = ", ".join(own[:5]) + (f" and {len(own) - 5} more" if len(own) > 5 else "")
        why = "a fault in one of them makes its caller root"
        mend = "take the bits away (chmod ug-s), and mount the disk nosuid"
        yield ImageFlaw(FlawWeight.DANGER, f"programs run as their owner: {shown}", why, mend)
    for line in disk.text("/etc/shadow").splitlines():
        name, _, secret = line.partition(":")
        secret = secret.split(":")[0]
        if not secret or secret.startswith("$"):
            told = "has no password" if not secret else "has a password"
            why = "who knows it, or finds it out, logs in where a console is open"
            yield ImageFlaw(FlawWeight.DANGER, f"{name} {told}", why, f"passwd --lock {name}, in the image")
