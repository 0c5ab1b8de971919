"""The files behind the memory that guests share, by libvirt's storage: the only way from another machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.etree.ElementTree import Element, SubElement, fromstring, tostring

import libvirt

from backfill.drivers.libvirt.ownership import User

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


def make_private(pool: Any, name: str, size_mb: int, user: User) -> None:
    """Make a file of this size that QEMU's `user` alone may open, unless it is there already.

    Everybody on the host may read one that QEMU makes, and whoever makes it first may write to it.
    No other than root can give a file to that user, or replace it there.
    """
    pool.refresh()
    known = next((file for file in pool.listAllVolumes() if file.name() == name), None)
    if known is not None and _is_private(known.XMLDesc(), user):
        return
    if known is not None:
        known.delete()
    pool.createXML(_file_xml(name, size_mb, user))  # libvirt opens no file that has come there meanwhile


def _is_private(document: str, user: User) -> bool:
    rights = fromstring(document).find("target/permissions")  # noqa: S314 - libvirtd's answer
    if rights is None:
        return False
    return (rights.findtext("mode"), rights.findtext("owner")) == (_MODE, str(user[0]))


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
