"""Whom guests of a closed network may talk to, by the policy file."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from backfill.config import forms
from backfill.config.model import LibvirtEntry
from backfill.core.policy import Template


def reach(libvirt: LibvirtEntry, instances: Template) -> tuple[str, ...] | None:
    """Return the networks, in CIDR notation, beyond which no guest gets; None: it may reach all.

    What is no IPv4 address is left out: `unreachable` names it.
    """
    if not libvirt.guest_network.closed:
        return None
    named = [forms.network_in(text) for text in (*_servers(libvirt), *libvirt.guest_network.also)]
    guests = [forms.network_in(address.partition("/")[0]) for address in instances.addresses]
    found = [ipaddress.IPv4Network(network) for network in (*named, *guests) if network is not None]
    return tuple(str(network) for network in ipaddress.collapse_addresses(found))


def unreachable(libvirt: LibvirtEntry, instances: Template) -> Iterator[tuple[str, str]]:
    """Key path and text of everything that a filter of IPv4 addresses cannot let through."""
    around = libvirt.surroundings
    for path, text in (
        ("controller", forms.address_in(around.controller)),
        *(("conf_server", address) for address in forms.addresses_of_endpoints(around.conf_server)),
        ("time_server", around.time_server),
    ):
        if text and forms.network_in(text) is None:
            yield f"libvirt.surroundings.{path}", text
    for index, server in enumerate(_file_servers(libvirt)):
        if forms.network_in(server) is None:
            yield f"libvirt.surroundings.mounts[{index}]", server
    for address in instances.addresses:
        if forms.network_in(address.partition("/")[0]) is None:
            yield "instances.addresses", address
            return


def _servers(libvirt: LibvirtEntry) -> tuple[str, ...]:
    around = libvirt.surroundings
    conf_servers = forms.addresses_of_endpoints(around.conf_server)
    return (around.controller, *conf_servers, around.time_server, *_file_servers(libvirt))


def _file_servers(libvirt: LibvirtEntry) -> tuple[str, ...]:
    return tuple(mount.split()[0].rpartition(":/")[0].strip("[]") for mount in libvirt.surroundings.mounts)
