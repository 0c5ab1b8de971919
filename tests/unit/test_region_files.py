"""The files behind shared memory: for QEMU's user alone, whoever was there before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import libvirt
import pytest

from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.connection.shared_memory import make_private
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.ports.errors import RefusedError

NAME, QEMU = "backfill-c1-7-bm1", (64055, 106)
_RIGHTS = "<permissions><mode>{}</mode><owner>{}</owner><group>0</group></permissions>"
_FILE = "<volume><name>{}</name><capacity>0</capacity><target>{}</target></volume>"


_POOL = "<pool type='dir'><name>regions</name><target><path>/regions</path></target></pool>"


@pytest.fixture
def files() -> Iterator[Any]:
    """Storage of libvirt's test driver, which touches no file."""
    connection = libvirt.open("test:///default")
    pool = connection.storagePoolCreateXML(_POOL)
    yield pool
    pool.destroy()
    connection.close()


def test_a_region_is_made_for_the_emulators_user_alone(files: Any) -> None:
    """Of its size, before QEMU makes it for everybody; the second machine of the job finds it."""
    for _ in range(2):
        make_private(files, NAME, 4, QEMU)
    document = files.storageVolLookupByName(NAME).XMLDesc()
    assert "<mode>0600</mode>" in document
    assert "<owner>64055</owner>" in document
    assert f"<capacity unit='bytes'>{4 << 20}</capacity>" in document


@pytest.mark.parametrize(("mode", "owner"), [("0666", 1000), ("0644", 64055), ("0600", 1000)])
def test_what_somebody_has_put_there_before_is_not_used(files: Any, mode: str, owner: int) -> None:
    """He could read the memory, or write to it."""
    files.createXML(_FILE.format(NAME, _RIGHTS.format(mode, owner)))
    make_private(files, NAME, 4, QEMU)
    (file,) = (one for one in files.listAllVolumes() if one.name() == NAME)
    assert "<mode>0600</mode>" in file.XMLDesc()
    assert "<owner>64055</owner>" in file.XMLDesc()


def test_without_a_user_to_give_it_to_nothing_is_shared() -> None:
    """libvirt's test driver runs no QEMU."""
    hypervisor = Hypervisor("bm1", "test:///default", LibvirtLimits())
    with pytest.raises(RefusedError, match=f"{NAME}: libvirt on bm1 does not say as whom QEMU runs"):
        hypervisor.make_shared_file(NAME, 4)
    hypervisor.close()
