"""The instances' names and addresses: hostlists expanded, addresses counted upwards."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from backfill.config.problems import quote

Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface


class AddressError(ValueError):
    """`str()` goes into a sentence after the key's name."""


def read(text: str) -> Interface:
    """Read one address with its network's prefix. Raises AddressError."""
    try:
        interface = ipaddress.ip_interface(text)
    except ValueError as error:
        raise AddressError(f"is {quote(text)}, which is no IP address") from error
    if "/" not in text:
        raise AddressError(f"is {quote(text)}, which lacks its network's prefix")
    if not _usable(interface, interface.ip):
        raise AddressError(f"is {quote(text)}, which no machine can have in that network")
    return interface


def count_up(first: Interface, names: Sequence[str]) -> tuple[str, ...]:
    """Give each name the next address, `first` to the first. Raises AddressError."""
    found = []
    for offset, name in enumerate(names):
        last = int(first.network.broadcast_address)
        if int(first.ip) + offset > last or not _usable(first, first.ip + offset):
            raise AddressError(
                f"begins at {first}, and the network {first.network} has no address left for {name}"
            )
        found.append(f"{first.ip + offset}/{first.network.prefixlen}")
    return tuple(found)


def _usable(interface: Interface, ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    network = interface.network
    if network.num_addresses <= 2:
        return True
    return ip not in (network.network_address, network.broadcast_address)
