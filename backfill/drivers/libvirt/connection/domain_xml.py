"""The domain document of an instance, and our label inside it. Pure: values in, text out."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, fromstring, register_namespace, tostring

from backfill.core.model.fleet import InstanceSpec, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.filtering import refer
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from backfill.ports.errors import BusyError

NAMESPACE, PREFIX = "urn:backfill:instance:1", "backfill"
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
register_namespace("qemu", _QEMU)
register_namespace(PREFIX, NAMESPACE)
_LABEL = f"metadata/{{{NAMESPACE}}}instance"
_UUIDS = uuid.UUID("6d3c2f0e-8f1b-4a55-9a55-2f6a3a3b7c11")
_CPU_MODES = ("host-model", "host-passthrough", "maximum")


class Frozen(StrEnum):
    """Are the jobs of a guest frozen, and not told yet which of them may go on?"""

    NO = "no"
    PERHAPS = "perhaps"  # it was asked to, and has not answered
    YES = "yes"


@dataclass(frozen=True, slots=True)
class Label:
    """Our mark in an instance's metadata. `created_s`: epoch seconds. `numa`: to which NUMA node it is
    bound where it was last started, restored or brought; None: to none."""

    tag: Tag
    resources: Resources
    created_s: float
    frozen: Frozen = Frozen.NO
    numa: int | None = None


@dataclass(frozen=True, slots=True)
class NumaPlace:
    """A NUMA node of a host: its number, its CPUs, and how firmly memory is taken from there."""

    number: int
    cpuset: str
    memory: str


@dataclass(frozen=True, slots=True)
class DomainFiles:
    """Absolute paths of one instance's files."""

    disk: str
    seed: str
    console: str


@dataclass(frozen=True, slots=True)
class Memory:
    """Guest memory in the file `path`. `shared`: written through, as only a parent's may be;
    otherwise what the guest changes is its own, and its state arrives before it runs."""

    path: str
    shared: bool


def mac_address(cluster: str, name: str) -> str:
    """Make a locally administered address that follows from the names alone."""
    digest = hashlib.sha256(f"{cluster}/{name}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in b"\x52" + digest[:5])


def domain_uuid(tag: Tag, name: str) -> str:
    """One generation of an instance has one UUID, on whichever host it is."""
    return str(uuid.uuid5(_UUIDS, f"{tag.cluster}/{name}/{tag.generation}"))


def parse_label(text: str) -> Label | None:
    """Read a label; None for anything that we cannot have written."""
    try:
        element = fromstring(text)  # noqa: S314 - libvirtd's answer, not an outside document
        return Label(
            Tag(element.attrib["cluster"], element.attrib["node"], int(element.attrib["generation"])),
            Resources(int(element.attrib["cpus"]), int(element.attrib["memory_mb"])),
            float(element.attrib["created_s"]),
            Frozen(element.attrib.get("frozen", Frozen.NO)),
            int(element.attrib["numa"]) if "numa" in element.attrib else None,
        )
    except (ParseError, KeyError, ValueError):
        return None


def domain_xml(
    spec: InstanceSpec,
    image: ImageFiles,
    files: DomainFiles,
    hardware: Hardware,
    bridge: str,
    created_s: float,
    memory: Memory | None = None,
    marked: bool = True,
    filtered_by: str = "",
    numa: NumaPlace | None = None,
) -> str:
    """Write the whole document for libvirt's define call. Without our mark it is nobody's instance.

    `filtered_by`: the filter that its card is behind; empty: none. `numa`: to which it is bound.
    """
    domain = Element("domain", {"type": hardware.domain_type})
    _text(domain, "name", spec.name)
    _text(domain, "uuid", domain_uuid(spec.tag, spec.name))
    if marked:
        label = Label(spec.tag, spec.flavour.resources, created_s)
        SubElement(domain, "metadata").append(_label_element(label))
    _text(domain, "memory", str(spec.flavour.memory_mb), {"unit": "MiB"})
    _text(domain, "vcpu", str(spec.flavour.cpus))
    if hardware.cpu_shares is not None:
        _text(SubElement(domain, "cputune"), "shares", str(hardware.cpu_shares))
    clone = memory is not None and not memory.shared
    # A clone's kernel is in its memory; given one more, QEMU reads it into memory of its own.
    _boot(domain, hardware, None if clone else image)
    # A clone's cache is its own memory, unlike nearly everything else that it has.
    _processor(domain, hardware, hardware.translation_cache_mb // (2 if clone else 1))
    clock = SubElement(domain, "clock", {"offset": "utc"})
    SubElement(clock, "timer", {"name": "hpet", "present": "no"})
    # One boot per instance: a guest that reboots by itself has lost its job and must not pose
    # as the same node; it ends, and the console keeps what it said.
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _text(domain, event, "destroy")
    # A guest that sends itself to sleep looks paused, cannot be paused, and is woken by any alarm.
    sleep = SubElement(domain, "pm")
    for depth in ("suspend-to-mem", "suspend-to-disk"):
        SubElement(sleep, depth, {"enabled": "no"})
    # A balloon in a guest that shares memory with its parent corrupts its siblings (measured).
    balloon = hardware.balloon and memory is None
    _devices(domain, spec, files, hardware, bridge, balloon)
    card = domain.find("devices/interface")
    if filtered_by and card is not None:
        refer(card, filtered_by, spec.address)
    if memory is not None:
        _memory(domain, spec.flavour.memory_mb, memory)
    bind(domain, numa)
    return tostring(domain, encoding="unicode")


def placed(document: str, files: DomainFiles) -> str:
    """Put the machine's disk, seed and console in other places."""
    domain = fromstring(document)  # noqa: S314 - libvirtd's answer, not an outside document
    place(domain, files)
    return tostring(domain, encoding="unicode")


def rebound(document: str, numa: NumaPlace | None) -> str:
    """Bind the machine to this NUMA node instead of the one that it was bound to; None: to none.

    The document is returned as it is where it was bound to none by us, and is not to be.
    """
    domain = fromstring(document)  # noqa: S314 - libvirtd's answer, not an outside document
    if numa is None and not _is_bound(domain):
        return document
    bind(domain, numa)
    return tostring(domain, encoding="unicode")


def bind(domain: Element, numa: NumaPlace | None) -> None:
    """Let its CPUs and its emulator's threads run on the CPUs of this NUMA node, with memory from there.

    What others have pinned stays as it is while we bind it to nothing.
    """
    if numa is not None or _is_bound(domain):
        _unbind(domain)
    label, cpus = domain.find(_LABEL), domain.find("vcpu")
    if numa is None or cpus is None:
        return
    # The emulator's own threads follow it, too, as they are pinned to nothing else.
    cpus.set("cpuset", numa.cpuset)
    memory = {"mode": numa.memory, "nodeset": str(numa.number)}
    SubElement(SubElement(domain, "numatune"), "memory", memory)
    if label is not None:
        label.set("numa", str(numa.number))


def _is_bound(domain: Element) -> bool:
    label = domain.find(_LABEL)
    return label is not None and "numa" in label.attrib


def _unbind(domain: Element) -> None:
    for path, kind in (("cputune", "vcpupin"), ("cputune", "emulatorpin"), (".", "numatune")):
        for parent in domain.findall(path):
            for old in parent.findall(kind):
                parent.remove(old)
    for path, word in (("vcpu", "cpuset"), (_LABEL, "numa")):
        for element in domain.findall(path):
            element.attrib.pop(word, None)


def private_folder(document: str) -> Path:
    """Return the folder on a running domain's host in which its emulator alone may make sockets."""
    domain = fromstring(document)  # noqa: S314 - libvirtd's answer, not an outside document
    agent = domain.find("devices/channel[@type='unix']/source[@path]")
    if agent is None:
        raise BusyError(domain.findtext("name", ""), "its emulator has no socket for the agent")
    return Path(agent.attrib["path"]).parent


def place(domain: Element, files: DomainFiles) -> None:
    """Let the machine find its disk, seed and console there."""
    places = {"vda": files.disk, "vdb": files.seed}
    for disk in domain.findall("devices/disk"):
        target, source = disk.find("target"), disk.find("source")
        path = None if target is None else places.get(target.get("dev", ""))
        if source is not None and path is not None:
            source.set("file", path)
    for kind in ("serial", "console"):
        for source in domain.findall(f"devices/{kind}/source"):
            source.set("path", files.console)


def _text(parent: Element, tag: str, text: str, attributes: dict[str, str] | None = None) -> None:
    SubElement(parent, tag, attributes or {}).text = text


def label_text(label: Label) -> str:
    """Write the label as libvirt takes it for a domain that exists: it adds the namespace by itself."""
    return tostring(Element("instance", _label_words(label)), encoding="unicode")


def _label_element(label: Label) -> Element:
    return Element(f"{{{NAMESPACE}}}instance", _label_words(label))


def _label_words(label: Label) -> dict[str, str]:
    return {
        "cluster": label.tag.cluster,
        "node": label.tag.node,
        "generation": str(label.tag.generation),
        "cpus": str(label.resources.cpus),
        "memory_mb": str(label.resources.memory_mb),
        "created_s": f"{label.created_s:.3f}",
        **({} if label.frozen is Frozen.NO else {"frozen": label.frozen.value}),
        **({} if label.numa is None else {"numa": str(label.numa)}),
    }


def _boot(domain: Element, hardware: Hardware, image: ImageFiles | None) -> None:
    system = SubElement(domain, "os")
    # An alias such as q35 is replaced by libvirt with the exact version when it is defined.
    _text(system, "type", "hvm", {"arch": "x86_64", "machine": hardware.machine})
    if image is not None:
        _text(system, "kernel", image.kernel)
        _text(system, "initrd", image.initrd)
        _text(system, "cmdline", image.cmdline)


def _memory(domain: Element, size_mb: int, memory: Memory) -> None:
    """libvirt has no words for a memory file of our choice, so QEMU is told by us."""
    share = "on" if memory.shared else "off"
    words = [
        "-object",
        f"memory-backend-file,id=backfill,size={size_mb}M,mem-path={memory.path},share={share}",
        "-machine",
        "memory-backend=backfill",
    ]
    if not memory.shared:
        words += ["-incoming", "defer"]
    line = SubElement(domain, f"{{{_QEMU}}}commandline")
    for word in words:
        SubElement(line, f"{{{_QEMU}}}arg", {"value": word})


def _processor(domain: Element, hardware: Hardware, cache_mb: int) -> None:
    features = SubElement(domain, "features")
    SubElement(features, "acpi")
    SubElement(features, "apic")
    if hardware.domain_type == "qemu":
        cache = SubElement(SubElement(features, "tcg"), "tb-cache", {"unit": "MiB"})
        cache.text = str(cache_mb)
    if hardware.cpu_model in _CPU_MODES:
        SubElement(domain, "cpu", {"mode": hardware.cpu_model})
        return
    processor = SubElement(domain, "cpu", {"mode": "custom", "match": "exact", "check": "none"})
    _text(processor, "model", hardware.cpu_model, {"fallback": "forbid"})
    for feature in hardware.cpu_features:
        SubElement(processor, "feature", {"policy": "require", "name": feature})


def _devices(
    domain: Element, spec: InstanceSpec, files: DomainFiles, hardware: Hardware, bridge: str, balloon: bool
) -> None:
    devices = SubElement(domain, "devices")
    SubElement(devices, "controller", {"type": "usb", "model": "none"})
    driver = {"name": "qemu", "type": "qcow2", "cache": hardware.disk_cache, "discard": "unmap"}
    _disk(devices, files.disk, "vda", driver)
    seed = _disk(devices, files.seed, "vdb", {"name": "qemu", "type": "raw"})
    SubElement(seed, "readonly")
    card = SubElement(devices, "interface", {"type": "bridge"})
    SubElement(card, "mac", {"address": mac_address(spec.tag.cluster, spec.name)})
    SubElement(card, "source", {"bridge": bridge})
    SubElement(card, "model", {"type": "virtio"})
    SubElement(card, "rom", {"enabled": "no"})
    # Appending: after a migration two emulators have written to one file.
    console = SubElement(devices, "serial", {"type": "file"})
    SubElement(console, "source", {"path": files.console, "append": "on"})
    SubElement(console, "target", {"type": "isa-serial", "port": "0"})
    channel = SubElement(devices, "channel", {"type": "unix"})
    SubElement(channel, "target", {"type": "virtio", "name": "org.qemu.guest_agent.0"})
    _text(SubElement(devices, "rng", {"model": "virtio"}), "backend", "/dev/urandom", {"model": "random"})
    model = {"model": "virtio", "freePageReporting": "off"} if balloon else {"model": "none"}
    SubElement(devices, "memballoon", model)
    slots = max(hardware.slots, spec.slots)
    if slots and "q35" in hardware.machine:
        used = _ports(devices, slots)
        _reserve(domain, range(used + 1, used + slots + 1), max(hardware.slot_mb, spec.slot_mb))


def _reserve(domain: Element, ports: range, size_mb: int) -> None:
    """Leave room for a region of that size behind each of these ports.

    Firmware leaves 2 MB for what comes to a port later. The guest shows a larger region that comes
    then, but nobody can map it. Twice its size, because its address is a multiple of its size and
    where the room begins is not.
    """
    if not size_mb:
        return
    override = SubElement(domain, f"{{{_QEMU}}}override")
    for port in ports:
        device = SubElement(override, f"{{{_QEMU}}}device", {"alias": f"pci.{port}"})
        size = {"name": "pref64-reserve", "type": "unsigned", "value": str(2 * size_mb << 20)}
        SubElement(SubElement(device, f"{{{_QEMU}}}frontend"), f"{{{_QEMU}}}property", size)


def _ports(devices: Element, spare: int) -> int:
    """On this board every device needs a port; libvirt makes as many as there are devices at the
    start, and of those that are there it uses the first: the number of these."""
    used = sum(len(devices.findall(kind)) for kind in ("disk", "interface", "channel", "rng"))
    used += len(devices.findall("memballoon[@model='virtio']"))
    for model in ("pcie-root", *("pcie-root-port",) * (used + spare)):
        SubElement(devices, "controller", {"type": "pci", "model": model})
    return used


def _disk(devices: Element, path: str, target: str, driver: dict[str, str]) -> Element:
    disk = SubElement(devices, "disk", {"type": "file", "device": "disk"})
    SubElement(disk, "driver", driver)
    SubElement(disk, "source", {"file": path})
    SubElement(disk, "target", {"dev": target, "bus": "virtio"})
    return disk
