"""A directory of a host as libvirt's storage: the only way to its files from another machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from xml.sax.saxutils import escape

import libvirt


@contextmanager
def as_pool(connection: Any, path: str, purpose: str) -> Iterator[Any]:
    """Open the directory as a storage pool: somebody's, or one that libvirt forgets again."""
    try:
        known = connection.storagePoolLookupByTargetPath(path)
    except libvirt.libvirtError:
        known = None
    if known is not None and known.isActive():
        known.refresh()
        yield known
        return
    name = f"{purpose}-{os.getpid()}"
    pool = connection.storagePoolCreateXML(
        f"<pool type='dir'><name>{name}</name><target><path>{escape(path)}</path></target></pool>"
    )
    try:
        yield pool
    finally:
        pool.destroy()  # libvirt forgets it, and touches no file
