"""Files that must belong to QEMU's user where that is not root, as on most hosts.

libvirt gives a domain's disks, console and saved memory to that user (`dynamic_ownership`), but it
knows nothing of the files that we name to QEMU past it.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree.ElementTree import fromstring

from backfill.ports.errors import RefusedError, unreadable

# File systems on which libvirt 9 leaves a file alone when a guest leaves (virFileIsSharedFSType).
_SHARED = frozenset(
    {
        "nfs",
        "nfs4",
        "gfs2",
        "ocfs2",
        "afs",
        "cifs",
        "smb3",
        "ceph",
        "fuse.ceph",
        "gpfs",
        "fuse.glusterfs",
        "acfs",
    }
)
User = tuple[int, int]  # uid, gid


def qemu_user(capabilities: str) -> User | None:
    """uid and gid as which QEMU runs, by libvirt's capabilities; None where they do not say."""
    document = fromstring(capabilities)  # noqa: S314 - libvirtd's answer, not an outside document
    for model in document.findall("host/secmodel"):
        if model.findtext("model") == "dac":
            label = model.findtext("baselabel", "").split(":")
            if len(label) == 2 and all(part.lstrip("+").isdigit() for part in label):
                return int(label[0]), int(label[1])
    return None


def owner_of(path: Path) -> User | None:
    """To whom it belongs; None for what is not there. UnreadableError: that cannot be told."""
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path.parent.name, error, path) from error
    return seen.st_uid, seen.st_gid


def refuse_if_taken_back(name: str, disk: Path) -> None:
    """RefusedError where the old host would take the disk from QEMU's user after a move for good.

    On a file system that libvirt does not know to be shared, it gives the disk back to root when
    the guest has left, and only root can give it to QEMU's user again: without that the guest
    cannot go on where it came to. As root we do that (`give`).
    """
    owner = owner_of(disk)
    if owner is None or owner[0] in (0, os.geteuid()) or _may_chown():
        return
    kind = file_system_of(disk, Path("/proc/self/mountinfo").read_text())
    if kind not in _SHARED:
        raise RefusedError(
            name,
            f"it cannot be moved: when it leaves, libvirt takes {disk} from uid {owner[0]}, "
            f"as whom QEMU runs, and uid {os.geteuid()}, as which this runs, cannot give it back",
            f"run the daemon as root, or put the directory on a file system that libvirt knows to "
            f"be shared, such as NFS (this is {kind})",
        )


def _may_chown() -> bool:
    """Return True if this process may give files away (CAP_CHOWN, the first of all)."""
    status = Path("/proc/self/status").read_text()
    bits = next((line for line in status.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    return bool(int(bits.split()[1], 16) & 1)


def file_system_of(path: Path, mounts: str) -> str:
    """Find the kind of file system on which a path is, by the text of /proc/self/mountinfo."""
    best, kind = -1, "unknown"
    for line in mounts.splitlines():
        about, _, rest = line.partition(" - ")
        point = Path(about.split()[4].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), rest.split()[0]
    return kind


def taken_back(path: Path) -> bool:
    """Return True if it may have been taken from QEMU's user: it belongs to root, or to us who made it."""
    owner = owner_of(path)
    return owner is not None and owner[0] in (0, os.geteuid())


def give(user: User | None, host: str, *paths: Path) -> None:
    """Let these belong to `user`, as whom QEMU runs on `host`; None changes nothing.

    Their times stay as they are: by those a parent is known. RefusedError where that is forbidden.
    """
    for path in paths:
        if user is None or user == owner_of(path):
            continue
        try:
            os.chown(path, *user)
        except OSError as error:
            raise RefusedError(
                str(path),
                f"cannot give it to {user[0]}:{user[1]}, as whom QEMU runs on {host}: {error.strerror}",
                "run the daemon as root, on a directory where root may do that, or QEMU as root",
            ) from error
