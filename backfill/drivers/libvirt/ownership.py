"""Files that must belong to QEMU's user where that is not root, as on most hosts.

libvirt gives a domain's disks, console and saved memory to that user (`dynamic_ownership`), but it
knows nothing of the files that we name to QEMU past it.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree.ElementTree import fromstring

from backfill.ports import RefusedError

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
    """To whom it belongs; None for what is not there."""
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_uid, seen.st_gid


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
                str(path), f"cannot give it to {user[0]}:{user[1]}, as whom QEMU runs on {host}: "
                f"{error.strerror}",
                "run the daemon as root, on a directory where root may do that, or QEMU as root",
            ) from error  # fmt: skip
