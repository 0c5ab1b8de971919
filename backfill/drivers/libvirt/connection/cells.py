"""The NUMA nodes of one host: libvirt calls them cells."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree.ElementTree import Element, fromstring

_MIB = {"b": 1 / 2**20, "bytes": 1 / 2**20, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}


@dataclass(frozen=True, slots=True)
class HostCell:
    """A NUMA node as libvirt tells of it. `cpuset`: its CPUs, as Linux numbers them: 0-7,16-23."""

    number: int
    cpus: int
    cpuset: str
    memory_mb: int


def host_cells(capabilities: str) -> tuple[HostCell, ...]:
    """Return those that have both CPUs and memory, by the host's capabilities."""
    document = fromstring(capabilities)  # noqa: S314 - libvirtd's answer, not an outside document
    found = (_cell(one) for one in document.findall("host/topology/cells/cell"))
    return tuple(sorted((c for c in found if c.cpus and c.memory_mb), key=lambda cell: cell.number))


def _cell(element: Element) -> HostCell:
    cpus = sorted(int(cpu.get("id", "0")) for cpu in element.findall("cpus/cpu"))
    memory = element.find("memory")
    size = 0.0 if memory is None else int(memory.text or 0) * _MIB[memory.get("unit", "KiB")]
    return HostCell(int(element.get("id", "0")), len(cpus), _ranges(cpus), int(size))


def _ranges(cpus: list[int]) -> str:
    """Write sorted numbers as Linux does."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
