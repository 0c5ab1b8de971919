"""The seed of a guest: a plain tar, unpacked over / at first boot, that tells it who it is."""

from __future__ import annotations

import io
import shlex
import tarfile
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a guest is. `address` is a CIDR such as 10.77.1.3/16, `conf_server` is ip:port."""

    node_name: str
    address: str
    gateway: str
    controller: str
    conf_server: str
    slurmd_options: str


def identity_text(identity: Identity) -> str:
    """Shell assignments, one per line, safe to source whatever the values hold."""
    pairs = {
        "NODE_NAME": identity.node_name,
        "ADDRESS": identity.address,
        "GATEWAY": identity.gateway,
        "CONTROLLER": identity.controller,
        "CONF_SERVER": identity.conf_server,
        "SLURMD_OPTIONS": identity.slurmd_options,
    }
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in pairs.items())


def seed_tar(identity: Identity, munge_key: bytes, no_ops: tuple[str, ...] = ()) -> bytes:
    """The guest's files; `no_ops` are absolute paths of programs that shall do nothing there.

    The same identity and key always give the same bytes, a multiple of 512 as a disk must be.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, "etc/backfill/identity", identity_text(identity).encode(), 0o644)
        _add(tar, "etc/munge/munge.key", munge_key, 0o400)
        for path in no_ops:
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, "/bin/true"
            tar.addfile(link)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
