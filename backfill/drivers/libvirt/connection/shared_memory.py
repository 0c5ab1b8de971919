"""The files behind the memory that guests share, by libvirt's storage: the only way from another machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

import libvirt

from backfill.drivers.libvirt.devices.device_xml import present_in
from backfill.drivers.libvirt.errors import lost
from backfill.drivers.libvirt.ownership import User
from backfill.ports.errors import RefusedError

_SHARED = "/dev/shm"  # noqa: S108 - where libvirt puts the memory that guests share
_AS_POOL = f"""
<pool type='dir'><name>backfill-regions</name><target><path>{_SHARED}</path></target></pool>
"""
_MODE = "0600"


@contextmanager
def shared_memory(connection: Any) -> Iterator[Any]:
    """Show the host's shared memory as a storage pool, somebody's or our own for a moment."""
    pool = _somebodys(connection)
    if pool is not None:
        yield pool
        return
    pool = connection.storagePoolCreateXML(_AS_POOL)
    try:
        yield pool
    finally:
        pool.destroy()  # libvirt forgets it, and touches no file


def _somebodys(connection: Any) -> Any:
    """Find the storage pool that is there already; None: there is none."""
    try:
        return connection.storagePoolLookupByTargetPath(_SHARED)
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_STORAGE_POOL:
            return None
        raise


def make_private(pool: Any, name: str, size_mb: int, user: User, mapped: Callable[[], bool]) -> bool:
    """Make a file of this size that QEMU's `user` alone may open, unless a file of his is there already.

    Everybody on the host may read one that QEMU makes, and whoever makes it first may write to it.
    No other than root can give a file to that user, or replace it there. Returns False for a file that
    QEMU itself has made, as older builds let it: it has the job's words, and cannot be made private.
    `mapped`: whether a running machine has it. RefusedError: then nobody else's file can be replaced.
    """
    pool.refresh()
    known = next((file for file in pool.listAllVolumes() if file.name() == name), None)
    mode, owner = (None, None) if known is None else _rights(known.XMLDesc())
    if owner == str(user[0]):
        return mode == _MODE
    if known is not None:
        if mapped():
            raise RefusedError(
                name,
                f"its file in {_SHARED} is another user's, and a running machine of its job has it already",
                "end that job, and the file goes with its last machine",
            )
        known.delete()
    pool.createXML(_file_xml(name, size_mb, user))  # libvirt opens no file that has come there meanwhile
    return True


def remove_files(pool: Any, names: Sequence[str], within_s: float) -> list[str]:
    """Remove these files, as many as it does in that time, and return those that stay."""
    stay: list[str] = []
    deadline_s = time.monotonic() + within_s
    for number, name in enumerate(names):
        if time.monotonic() > deadline_s:
            return [*stay, *names[number:]]
        try:
            pool.storageVolLookupByName(name).delete()
        except libvirt.libvirtError as error:  # such as a directory that somebody has filled: the others go
            if lost(error):
                raise
            if error.get_error_code() != libvirt.VIR_ERR_NO_STORAGE_VOL:
                stay.append(name)
    return stay


def is_mapped(connection: Any, name: str) -> bool:
    """Return True if a running machine of that host has this region."""
    running = connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
    return any(name in present_in(domain.XMLDesc())[1] for domain in running)


def _rights(document: str) -> tuple[str | None, str | None]:
    """Return mode and owner; None: not told."""
    rights = fromstring(document).find("target/permissions")  # noqa: S314 - libvirtd's answer
    return (None, None) if rights is None else (rights.findtext("mode"), rights.findtext("owner"))


def _file_xml(name: str, size_mb: int, user: User) -> str:
    volume = Element("volume")
    SubElement(volume, "name").text = name
    SubElement(volume, "capacity", {"unit": "MiB"}).text = str(size_mb)
    SubElement(volume, "allocation").text = "0"
    target = SubElement(volume, "target")
    SubElement(target, "format", {"type": "raw"})
    rights = SubElement(target, "permissions")
    for key, value in (("mode", _MODE), ("owner", user[0]), ("group", user[1])):
        SubElement(rights, key).text = str(value)
    return tostring(volume, encoding="unicode")
