"""The seed of a guest: a plain tar, unpacked over / at first boot, that tells it who it is.

Its first file says what kind of guest it is for: `entropy`, 64 random bytes, for one that shall
work; `parent` for one that is to be frozen. A clone looks at these first blocks of its disk to find
out that it is one (`lab/guest/become.c`), so the order and the length of the seed are fixed.
"""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.ports.errors import RefusedError
from backfill.ports.provider import SeedFile

ENTROPY_BYTES = 64
# A clone goes on with the disk sizes that its parent saw: all seeds that it can read are equally long.
_LENGTH = 64 << 10
MOST_USER_DATA = 32 << 10  # leaves room for the rest
_MOST_PEERS = 16 << 10
PEERS = "/etc/backfill/peers"
OWN_ROOT = "/etc/backfill/own-root"
MUNGE_KEY = "/etc/munge/munge.key"
HOOK_PROGRAM, HOOK_FILE = "/usr/local/sbin/backfill-hook", "/etc/backfill/hook"
_NOTHING, _STAND_IN = "/bin/true", "/etc/backfill/stand-in"
# Ends well even in a guest whose image lacks the hook: a prolog that fails would drain its node.
_STAND_IN_TEXT = f"""#!/bin/sh
# In the place of programs that only hosts have. A job that begins awaits its devices.
case "$SLURM_SCRIPT_CONTEXT" in prolog*) [ ! -x {HOOK_PROGRAM} ] || {HOOK_PROGRAM} ;; esac
exit 0
"""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a guest. `address` is a CIDR such as 10.77.1.3/16, `conf_server` is
    ip:port, or several of these joined by commas, as slurmd has it.

    `mac` is the hardware address that its card must have; a clone comes with its parent's.
    """

    node_name: str
    address: str
    gateway: str
    controller: str
    conf_server: str
    slurmd_options: str
    mac: str = ""
    time_server: str = ""
    mounts: tuple[str, ...] = ()  # as in fstab


def identity_text(identity: Identity) -> str:
    """Shell assignments, one per line, safe to source whatever the values hold."""
    pairs = {
        "NODE_NAME": identity.node_name,
        "ADDRESS": identity.address,
        "GATEWAY": identity.gateway,
        "CONTROLLER": identity.controller,
        "CONF_SERVER": identity.conf_server,
        "SLURMD_OPTIONS": identity.slurmd_options,
        "MAC": identity.mac,
        "TIME_SERVER": identity.time_server,
        "MOUNTS": "\n".join(identity.mounts),
    }
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in pairs.items())


def peers_text(peers: Mapping[str, str], but_for: str) -> bytes:
    """Lines of /etc/hosts for all machines by name, but for one's own; nothing where they are too many."""
    lines = (f"{address} {name}\n" for name, address in peers.items() if name != but_for)
    text = "".join(lines).encode()
    return text if len(text) <= _MOST_PEERS else b""


def own_root_text(most_mb: int, mounts: Iterable[str]) -> bytes:
    """Return what `lab/guest/root.c` reads: how large a root of a user's own may be, and below that where
    the mounts are, which are seen in it as well. `mounts`: as in fstab."""
    return "".join(f"{line}\n" for line in (most_mb, *(mount.split()[1] for mount in mounts))).encode()


def seed_tar(
    identity: Identity,
    key: bytes,
    no_ops: tuple[str, ...] = (),
    entropy: bytes = b"",
    canary: bool = False,
    more: Mapping[str, SeedFile] | None = None,
    asks: str = "",
    key_place: str = MUNGE_KEY,
) -> bytes:
    """Pack the guest's files, the cluster's key among them at its `key_place`; `no_ops` are paths of
    programs that shall do nothing there, but with `asks` (see `Surroundings`) hold the start of a job
    until its devices are in the guest.

    `entropy`: randomness that no other guest gets; without it the guest becomes a parent, to be
    frozen. `canary`: the guest tries itself out, says how that went and ends. The same arguments
    always give the same bytes, a multiple of 512 as a disk must be. `more`: further files by path.
    Only a guest that boots reads more than 64 KiB: see `for_a_clone`.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        if entropy:
            _add(tar, "etc/backfill/entropy", entropy, 0o600)
        else:
            _add(tar, "etc/backfill/parent", b"\n", 0o600)
        if canary:
            _add(tar, "etc/backfill/canary", b"\n", 0o644)
        _add(tar, "etc/backfill/identity", identity_text(identity).encode(), 0o644)
        _add(tar, key_place[1:], key, 0o400)
        for path, file in sorted((more or {}).items()):
            _add(tar, path.lstrip("/"), file.content, file.mode)
        if asks:
            _add(tar, HOOK_FILE[1:], f"{asks}\n".encode(), 0o644)
            _add(tar, _STAND_IN[1:], _STAND_IN_TEXT.encode(), 0o755)
        for path in no_ops:
            link = tarfile.TarInfo(path.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, _STAND_IN if asks else _NOTHING
            tar.addfile(link)
    # Up to the end mark: tarfile fills up whole records, for tapes.
    return buffer.getvalue()[: tar.offset].ljust(_LENGTH, b"\0")


def for_a_clone(name: str, seed: bytes) -> bytes:
    """Return the seed of an instant clone, or of its parent. RefusedError: a clone cannot read all of it."""
    if len(seed) > _LENGTH:
        raise RefusedError(
            name,
            f"its seed has {len(seed)} bytes, and an instant clone reads {_LENGTH} of them",
            "shorten its user data, or clone it in another way (cloning.method: linked)",
        )
    return seed


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
