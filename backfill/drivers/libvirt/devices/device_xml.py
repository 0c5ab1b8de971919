"""Devices in words: what a host's node devices tell of them, and how libvirt is asked. Pure."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, ParseError, SubElement, fromstring, tostring

from backfill.core.model.devices import VirtualFunction

_ADDRESS = re.compile(r"([0-9a-f]{4}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")


def from_node_device(host: str, document: str) -> VirtualFunction | None:
    """Read the virtual function that a libvirt node device is; None for anything else."""
    try:
        device = fromstring(document)  # noqa: S314 - libvirtd's answer, not an outside document
    except ParseError:
        return None
    card = device.find("capability[@type='pci']/capability[@type='phys_function']/address")
    own = device.find("capability[@type='pci']")
    if card is None or own is None:
        return None
    words = [own.findtext(part) or "0" for part in ("domain", "bus", "slot", "function")]
    physical = [card.get(part, "0x0") for part in ("domain", "bus", "slot", "function")]
    return VirtualFunction(host, _address(words), _address(physical))


def hostdev_xml(address: str) -> str:
    """Describe a virtual function for attach and detach; managed: libvirt rebinds its driver."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"{address} is no PCI address such as 0000:3b:02.1")
    device = Element("hostdev", {"mode": "subsystem", "type": "pci", "managed": "yes"})
    names = ("domain", "bus", "slot", "function")
    where = {name: f"0x{digits}" for name, digits in zip(names, match.groups(), strict=True)}
    SubElement(SubElement(device, "source"), "address", where)
    return tostring(device, encoding="unicode")


def shmem_xml(region: str, size_mb: int, port: int | None = None, alias: str = "") -> str:
    """Describe a shared memory region for libvirt's attach and detach. `port`: see `free_port`.

    `alias`: a name that nothing in this guest had before, for attach. By the usual one QEMU may still
    know the memory of a region that has just left, and then it ends, with its guest ("RAMBlock already
    registered").
    """
    device = Element("shmem", {"name": region})
    SubElement(device, "model", {"type": "ivshmem-plain"})
    SubElement(device, "size", {"unit": "M"}).text = str(size_mb)
    if alias:
        SubElement(device, "alias", {"name": f"ua-{alias}"})  # libvirt takes no other beginning
    if port is not None:
        # A plain PCI device: libvirt puts it on a port of PCI Express only when told to.
        where = {"type": "pci", "domain": "0x0", "bus": f"{port:#x}", "slot": "0x0"}
        SubElement(device, "address", {**where, "function": "0x0"})
    return tostring(device, encoding="unicode")


def free_port(domain: str) -> int | None:
    """Find a PCI Express port of a running domain that nothing is plugged into; None: it has none."""
    devices = fromstring(domain).find("devices")  # noqa: S314 - libvirtd's answer
    if devices is None:
        return None
    used = devices.findall("*/address[@type='pci']")
    taken = {int(found.get("bus", "0x0"), 0) for found in used}
    ports = devices.findall("controller[@model='pcie-root-port']")
    free = {int(port.get("index", "0")) for port in ports} - taken
    return min(free, default=None)


def present_in(domain: str) -> tuple[set[str], set[str]]:
    """PCI addresses of functions, and names of regions, that a running domain has."""
    devices = fromstring(domain).find("devices")  # noqa: S314 - libvirtd's answer
    if devices is None:
        return set(), set()
    functions = set()
    for found in devices.findall("hostdev/source/address"):
        words = [found.get(part, "0x0") for part in ("domain", "bus", "slot", "function")]
        functions.add(_address(words))
    return functions, {found.get("name", "") for found in devices.findall("shmem")}


def has_balloon(domain: str) -> bool:
    """Return True if a running domain has a balloon."""
    found = fromstring(domain).find("devices/memballoon")  # noqa: S314 - libvirtd's answer
    return found is not None and found.get("model") != "none"


def _address(words: list[str]) -> str:
    """libvirt writes the parts decimal in one place and hexadecimal, with 0x, in another."""
    domain, bus, slot, function = (int(word, 0) for word in words)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"
