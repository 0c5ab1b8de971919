"""Binds instances to NUMA nodes: chosen when one comes into a host's memory, by what is there then.

What is bound where stands in the domains and in our label there, so that nothing has to be kept
beside; only calls under way are known to this process alone, as their domains may not show yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backfill.core.model.fleet import Instance, InstanceState, NumaNode, Tag
from backfill.core.model.quantities import Resources
from backfill.core.numa import choose, fits, usable
from backfill.drivers.libvirt.connection.cells import HostCell
from backfill.drivers.libvirt.connection.domain_xml import NumaPlace
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import NoCapacityError


def numa_nodes(pool: Pool, host: str) -> tuple[NumaNode, ...]:
    """Return the NUMA nodes of a host, to one of which each instance is bound there; none: to none."""
    if pool.config.numa is None:
        return ()
    return _less(pool.on(host).cells(), pool.config.reserved_on(host))


def _less(cells: tuple[HostCell, ...], reserve: Resources) -> tuple[NumaNode, ...]:
    """Return what the host does not keep for itself, which it takes from all alike."""
    nodes = tuple(NumaNode(cell.number, cell.cpus, cell.memory_mb) for cell in cells)
    left = usable(nodes, 1.0, reserve)
    return tuple(NumaNode(n, max(0, r.cpus), max(0, r.memory_mb)) for n, r in left.items())


@contextmanager
def bound(pool: Pool, host: str, name: str, shape: Resources) -> Iterator[NumaPlace | None]:
    """Choose the NUMA node of an instance that comes to `host` inside; None: it is bound to none.

    NoCapacityError: none has the memory left, though one is large enough.
    """
    terms = pool.config.numa
    if terms is None:
        yield None
        return
    cells = {cell.number: cell for cell in pool.on(host).cells()}
    with pool.one_by_one(f"NUMA nodes of {host}"):
        whole = usable(numa_nodes(pool, host), terms.cpu_overcommit, terms.keep)
        number = choose(whole, _others(pool, host, name), shape)
        if number is None and fits(whole, shape):
            what = f"none of its NUMA nodes has {shape.memory_mb} MB left for {name}"
            raise NoCapacityError(host, what, "it will be tried again")
        if number is not None:
            pool.arriving[host, name] = _coming(pool, host, name, shape, number)
    try:
        cell = None if number is None else cells[number]
        yield None if cell is None else NumaPlace(cell.number, cell.cpuset, terms.memory)
    finally:
        pool.arriving.pop((host, name), None)


def _others(pool: Pool, host: str, name: str) -> list[Instance]:
    """Return all instances but this one that are on the host, or are being brought there."""
    # In this order: whoever has arrived meanwhile is among the domains.
    coming = {other: one for (where, other), one in list(pool.arriving.items()) if where == host}
    there = {d.name: pool.instance(host, d) for d in pool.on(host).domains() if d.active}
    return [one for other, one in {**there, **coming}.items() if one is not None and other != name]


def _coming(pool: Pool, host: str, name: str, shape: Resources, number: int) -> Instance:
    tag = Tag(pool.config.cluster, name, 0)
    return Instance(name, host, InstanceState.BUILDING, tag, shape, numa=number)
