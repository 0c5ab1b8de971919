"""The name servers that guests ask: the site's, never a service of the machine that builds the image."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from backfill.lab.spec import LabError

_SERVER = re.compile(r"\s*nameserver\s+(\S+)")
# Where systemd-resolved writes whom it asks itself.
_BEHIND_SYSTEMD = "run/systemd/resolve/resolv.conf"
_STUBS = frozenset({"127.0.0.53", "127.0.0.54"})


def resolver_for_guests(etc: Path) -> str:
    """Read `etc`'s resolv.conf without name servers of the machine's own; empty: guests ask nobody.

    Behind systemd-resolved, those that it asks. Raises LabError where no other server is left.
    """
    path = etc / "resolv.conf"
    text = _read(path)
    own = {number: server for number, server in _servers(text) if _is_own(server)}
    if own and _STUBS & set(own.values()):
        behind = etc.parent / _BEHIND_SYSTEMD
        text = _read(behind) if behind.is_file() else text
    kept = [line for line in text.splitlines() if not _is_own(_server(line))]
    if any(map(_server, kept)):
        return "".join(f"{line}\n" for line in kept)
    for number, server in own.items():
        raise LabError(
            f"{path}:{number}: nameserver {server} is this machine itself, and a guest that asks there asks "
            "itself: write a name server of the network (--from takes a copy), or an empty file for none"
        )
    return ""


def _servers(text: str) -> list[tuple[int, str]]:
    return [(number, _server(line)) for number, line in enumerate(text.splitlines(), 1) if _server(line)]


def _server(line: str) -> str:
    found = _SERVER.match(line)
    return found[1] if found else ""


def _is_own(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}; name its directory by --from") from error
