"""Which parents a host has or is just raising, and how the raising ends at once."""

from __future__ import annotations

from pathlib import Path

from backfill.core.fleet import CloneParent
from backfill.drivers.libvirt.parents import Parent, flavour_of, key_of, kind_of, parents_on
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.store import folders_in


def seen(pool: Pool, host: str, active: frozenset[str]) -> tuple[CloneParent, ...]:
    """The parents on `host`, made or in the making; `active`: names of domains that run there."""
    hardware = pool.config.hardware
    found = set()
    for home in _parents(pool, host):
        key, flavour = key_of(home), flavour_of(home)
        running = home.name in active or f"canary-{key}" in active
        made = Parent(home).intact()
        if flavour is None or not (made or running):
            continue
        for name, image in pool.config.images.items():
            if kind_of(flavour, image, hardware) == key:
                shape = (flavour.cpus, flavour.memory_mb, flavour.disk_gb)
                found.add(CloneParent(name, *shape, made))
    return tuple(sorted(found, key=repr))


def _parents(pool: Pool, host: str) -> list[Path]:
    homes = folders_in(parents_on(pool, host).root)
    return [home for home in homes if home.name.startswith("parent-")]


def end_nursing(pool: Pool, host: str) -> None:
    """Nothing that was to become a parent runs on `host` when this returns."""
    hypervisor, store = pool.on(host), parents_on(pool, host)
    pool.nurseries.end(host)
    _destroy_nurslings(pool, host)  # so that the host has its CPUs back at once
    with pool.one_by_one(host):  # whoever made one has left
        for home in _destroy_nurslings(pool, host):
            hypervisor.undefine(home.name)
            hypervisor.undefine(f"canary-{key_of(home)}")
            store.remove(home.name)


def _destroy_nurslings(pool: Pool, host: str) -> list[Path]:
    """End the emulators of all parents that are not made yet; returns their folders."""
    hypervisor, half = pool.on(host), [h for h in _parents(pool, host) if not Parent(h).intact()]
    needed = pool.store.parents_in_use() if half else frozenset()
    homes = [home for home in half if str(home) not in needed]
    for home in homes:
        hypervisor.destroy(home.name)
        hypervisor.destroy(f"canary-{key_of(home)}")
    return homes
