"""What one host offers, as its libvirtd tells it: before any guest is made there, and changing nothing.

Files of the host are seen through a storage pool that exists only meanwhile. Making one touches no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree.ElementTree import fromstring

import libvirt

from backfill.drivers.libvirt.connection.link import Link, machine_name
from backfill.drivers.libvirt.connection.storage import as_pool
from backfill.drivers.libvirt.ownership import User, qemu_user
from backfill.drivers.libvirt.settings import Hardware, LibvirtLimits

_ARCH = "x86_64"
_MOST_TEXT = 1_000_000


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file as the host has it: size in bytes, permission bits, owner."""

    size: int
    mode: int
    owner: User


@dataclass(frozen=True, slots=True)
class HostFolder:
    """A directory of the host: its files by name. `problem`: why it cannot be seen, in libvirt's words.

    `texts`: what stands in those of its files that were asked for.
    """

    problem: str = ""
    missing: bool = False
    files: Mapping[str, HostFile] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HostInspection:
    """What a host offers. `name`: as it calls itself. `bridges`: by name; None: its libvirt cannot tell.

    `kvm`: whether guests can run on its processors. `machine_problem`: why a guest with this board
    cannot be made; `cpu_models`: those it can have, modes included. `domains`: names of all guests,
    ours or not. `user`: uid and gid of QEMU. `filters`: whether it can filter what guests send.
    `modes`: permission bits of the directories that were asked for; None: it cannot be seen.
    """

    name: str = ""
    bridges: frozenset[str] | None = None
    kvm: bool = True
    machine_problem: str = ""
    cpu_models: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    user: User | None = None
    filters: bool = True
    folders: Mapping[str, HostFolder] = field(default_factory=dict)
    modes: Mapping[str, int | None] = field(default_factory=dict)


def inspect(
    host: str,
    uri: str,
    limits: LibvirtLimits,
    hardware: Hardware,
    folders: Mapping[str, Sequence[str]],
    ways: Sequence[str] = (),
) -> HostInspection:
    """Look at a host. `folders`: directories to list, each with the names of files to read there;
    `ways`: directories of which the permission bits are wanted.

    Raises DriverError where the host does not answer.
    """
    link = Link(host, uri, limits)

    def work(connection: Any) -> HostInspection:
        capabilities = connection.getCapabilities()
        problem, models = _domain_capabilities(connection, hardware)
        return HostInspection(
            name=machine_name(connection),
            bridges=_bridges(connection),
            kvm=_has_kvm(capabilities),
            machine_problem=problem,
            cpu_models=models,
            domains=frozenset(domain.name() for domain in connection.listAllDomains()),
            user=qemu_user(capabilities),
            filters=_filters(connection),
            folders={path: _folder(connection, path, names) for path, names in folders.items()},
            modes={path: directory_mode(connection, path) for path in ways},
        )

    try:
        return link.call(host, work)
    finally:
        link.close()


def _bridges(connection: Any) -> frozenset[str] | None:
    try:
        found = connection.listAllInterfaces()
        return frozenset(one.name() for one in found if "<interface type='bridge'" in one.XMLDesc())
    except libvirt.libvirtError:
        return None  # without the driver for interfaces a host says nothing of them


def _filters(connection: Any) -> bool:
    try:
        connection.numOfNWFilters()
    except libvirt.libvirtError:
        return False  # the driver for network filters is a package of its own
    return True


def _has_kvm(capabilities: str) -> bool:
    document = fromstring(capabilities)  # noqa: S314 - libvirtd's answer, not an outside document
    return any(
        kind.get("type") == "kvm"
        for arch in document.findall("guest/arch")
        if arch.get("name") == _ARCH
        for kind in arch.iter("domain")
    )


def _domain_capabilities(connection: Any, hardware: Hardware) -> tuple[str, frozenset[str]]:
    """Return why such a guest cannot be made, and the CPU models that it can have."""
    try:
        text = connection.getDomainCapabilities(None, _ARCH, hardware.machine, hardware.domain_type)
    except libvirt.libvirtError as error:
        return " ".join(str(error).split()), frozenset()
    document = fromstring(text)  # noqa: S314 - as above
    modes = {m.get("name", "") for m in document.findall("cpu/mode") if m.get("supported") == "yes"}
    named = document.findall("cpu/mode[@name='custom']/model")
    models = {m.text or "" for m in named if m.get("usable") != "no"}
    return "", frozenset(modes | models)


def _folder(connection: Any, path: str, names: Sequence[str]) -> HostFolder:
    try:
        with as_pool(connection, path, "backfill-doctor") as pool:
            volumes = {volume.name(): volume for volume in pool.listAllVolumes()}
            files = {name: _file(volume) for name, volume in volumes.items()}
            texts = {name: _text(connection, volumes[name]) for name in names if name in volumes}
            return HostFolder(files=files, texts=texts)
    except libvirt.libvirtError as error:
        said = " ".join(str(error).split())
        return HostFolder(problem=said, missing="No such file or directory" in said)


def directory_mode(connection: Any, path: str) -> int | None:
    """Return the permission bits of a directory, which its pool tells once it has been looked through."""
    try:
        with as_pool(connection, path, "backfill-doctor") as pool:
            document = fromstring(pool.XMLDesc())  # noqa: S314 - as above
    except libvirt.libvirtError:
        return None
    told = document.findtext("target/permissions/mode")
    return None if told is None else int(told, 8)


def _file(volume: Any) -> HostFile:
    document = fromstring(volume.XMLDesc())  # noqa: S314 - as above
    size = int(document.findtext("physical") or document.findtext("capacity") or 0)
    rights = "target/permissions"
    owner = (int(document.findtext(f"{rights}/owner", "0")), int(document.findtext(f"{rights}/group", "0")))
    return HostFile(size, int(document.findtext(f"{rights}/mode", "0"), 8), owner)


def _text(connection: Any, volume: Any) -> str:
    """Read a small file of the host; one without a size, such as those of the kernel's, to its end."""
    size = volume.info()[1]
    if size > _MOST_TEXT:
        return ""
    stream = connection.newStream()
    volume.download(stream, 0, size)
    parts: list[bytes] = []
    stream.recvAll(lambda _stream, data, taken: taken.append(data), parts)
    stream.finish()
    return b"".join(parts).decode("utf-8", "surrogateescape")
