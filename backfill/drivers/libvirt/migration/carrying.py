"""An instance's files on their way to a host that has a directory of its own.

What moves with a guest in memory is sent by QEMU, into a disk that is laid out here. What is at
rest is copied and compared, byte for byte by checksum, before anything of the old is given up.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backfill.drivers.libvirt.checkpoints import packing
from backfill.drivers.libvirt.checkpoints.folders import copy_file
from backfill.drivers.libvirt.connection.domain_xml import NumaPlace, placed, rebound
from backfill.drivers.libvirt.migration.transfer import Carriage
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.store import run_qemu_img, write_secret
from backfill.ports.errors import BadOutputError, DriverError, RefusedError

_PARTS = ("disk.qcow2", "seed.tar", "memory.save", "console.log")


def refuse_if_leaning(pool: Pool, name: str, target: str, parent: Path | None) -> None:
    """Refuse to move an instant clone to where its parent's files are not."""
    if parent is not None and not parent.is_relative_to(pool.store_on(target).root):
        raise RefusedError(
            name,
            f"it is an instant clone of {parent}, which {target} does not have",
            "clone by linked or full where instances are to move between directories",
        )


@contextmanager
def for_guest(
    pool: Pool, host: str, name: str, target: str, numa: NumaPlace | None
) -> Iterator[Carriage | None]:
    """Lay out what QEMU on `target` needs to receive the guest, bound to a NUMA node there or to none.

    None where both hosts have the same directory, and it is bound to none on both. Inside, an error
    means that it stays: what was laid out is removed again, unless `target` may still be using it.
    """
    hypervisor = pool.on(host)
    if pool.share(host, target):
        now, later = hypervisor.migratable_document(name), hypervisor.document(name)
        there, again = rebound(now, numa), rebound(later, numa)
        yield None if (there, again) == (now, later) else Carriage(there, again, disk=False)
        return
    with _tidy(pool, name, target):
        source, to = pool.store_on(host), pool.store_on(target)
        _begin(pool, target, name)
        _same_disk(name, source.files(name).disk, to.files(name).disk)
        for path in (source.files(name).seed, source.files(name).console):
            if Path(path).exists():
                copy_file(name, Path(path), to.home(name) / Path(path).name)
        files = to.files(name)
        there = placed(rebound(hypervisor.migratable_document(name), numa), files)
        yield Carriage(there, placed(rebound(hypervisor.document(name), numa), files), disk=True)


@contextmanager
def at_rest(pool: Pool, host: str, name: str, target: str) -> Iterator[None]:
    """Copy all files of an instance that stands still on disk; inside, `target` has them.

    BadOutputError where a copy is not what was copied; then, and on any error inside, the copies
    are removed and the old files are as they were.
    """
    if pool.share(host, target):
        yield
        return
    with _tidy(pool, name, target):
        source, to = pool.store_on(host), pool.store_on(target)
        _begin(pool, target, name)
        for path in sorted(source.home(name).iterdir()):
            if path.name in _PARTS:
                _copy_and_compare(name, path, to.home(name) / path.name)
        yield


def forget(pool: Pool, host: str, name: str, other: str) -> None:
    """Remove what `host` has of an instance that is on `other` now, or stayed there."""
    if not pool.share(host, other):
        _clear(pool, host, name)


@contextmanager
def _tidy(pool: Pool, name: str, target: str) -> Iterator[None]:
    try:
        yield
    except BaseException:
        # A host that does not answer may have it: then the files stay, for the next attempt.
        with contextlib.suppress(DriverError):
            if pool.on(target).find(name) is None:
                _clear(pool, target, name)
        raise


def _begin(pool: Pool, target: str, name: str) -> None:
    _clear(pool, target, name)  # what an interrupted move has left
    pool.store_on(target).home(name).mkdir(mode=0o711, parents=True, exist_ok=True)


def _clear(pool: Pool, host: str, name: str) -> None:
    store = pool.store_on(host)
    if store.root != pool.store.root:
        store.remove(name)
        return
    for part in _PARTS:  # the daemon's notes of it, its claims first of all, lie beside them
        (store.home(name) / part).unlink(missing_ok=True)


def _same_disk(name: str, old: str, new: str) -> None:
    """Make an empty disk of the same size over the same image; QEMU sends what lies in the old one."""
    told = run_qemu_img(name, "info", "-U", "--output=json", old)
    try:
        seen = json.loads(told)
        size, below = str(int(seen["virtual-size"])), seen.get("full-backing-filename", "")
        kind = seen.get("backing-filename-format", "raw")
    except (ValueError, KeyError, TypeError) as error:
        raise BadOutputError(name, f"qemu-img told of its disk: {told[:80]!r}") from error
    backing = ("-F", kind, "-b", below) if below else ()
    write_secret(new, b"")
    run_qemu_img(name, "create", "-q", "-f", "qcow2", *backing, new, size)


def _copy_and_compare(name: str, old: Path, new: Path) -> None:
    copy_file(name, old, new)
    packing.flush(new)
    descriptor = os.open(new, os.O_RDONLY)
    try:  # so that the disk is read, not what is still in memory
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if packing.checksum(old) != packing.checksum(new):
        raise BadOutputError(name, f"the copy of {old} in {new.parent} is not the same", "check that disk")
