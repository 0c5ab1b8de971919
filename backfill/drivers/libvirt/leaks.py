"""Finds folders in the shared directory for which no host has an instance any more."""

from __future__ import annotations

import time
from pathlib import Path

from backfill.core.model.fleet import Leak
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import BusyError, DriverError, NotFoundError

_MB = 1_000_000


def leaks(pool: Pool, older_s: float) -> tuple[Leak, ...]:
    """Folders without an instance that nobody has touched for `older_s` seconds.

    A host that does not answer may have any of them: then nothing is called a leak. Raises
    DriverError in that case.
    """
    present = _present(pool)
    now_s = time.time()
    found = []
    for store in pool.stores:
        # A move that was cut off leaves files on a host that has not got the instance.
        needed = set().union(*(present[h] for h in present if _uses(pool, h, store)))
        for folder in sorted(store.root.glob("[!.]*")):
            age_s = now_s - _touched_s(folder)
            if folder.is_dir() and folder.name not in needed and age_s >= older_s:
                found.append(Leak(folder.name, str(folder), _size_mb(folder), age_s))
    return tuple(found)


def _uses(pool: Pool, host: str, store: Store) -> bool:
    return store.root in (pool.store.root, pool.store_on(host).root)


def remove_leak(pool: Pool, name: str, older_s: float) -> None:
    """Remove one of `leaks`. NotFoundError when it is none, by a look taken now."""
    with pool.changing(name):
        found = {leak.where for leak in leaks(pool, older_s) if leak.name == name}
        if not found:
            raise NotFoundError(name, "is no leak", "look again with `backfill instances --leaks`")
        for store in pool.stores:
            if str(store.home(name)) in found:
                store.remove(name)


def _present(pool: Pool) -> dict[str, set[str]]:
    """Names of all domains, ours or not, by host."""
    names: dict[str, set[str]] = {}
    for host, hypervisor in pool.hypervisors.items():
        try:
            _, domains = hypervisor.survey()
        except DriverError as error:
            raise BusyError(
                host,
                f"it may have any of the folders, and cannot be asked ({error})",
                "bring it back, or take it out of the policy file",
            ) from error
        names[host] = {domain.name for domain in domains}
    return names


def _touched_s(folder: Path) -> float:
    """Return the time of the last write in it."""
    times = [folder.stat().st_mtime]
    times += [file.stat().st_mtime for file in folder.iterdir()] if folder.is_dir() else []
    return max(times)


def _size_mb(folder: Path) -> float:
    used = sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file())
    return round(used / _MB, 3)
