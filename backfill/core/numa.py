"""NUMA: what is left on each NUMA node of a host, and which of them gets an instance. Pure.

The driver that makes or moves an instance chooses by the same rule, among what its hypervisor shows
at that moment; so placement foresees what will be chosen, and nothing has to be remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.core.model.fleet import Instance, NumaNode
from backfill.core.model.quantities import NOTHING, Resources

Left = Mapping[int, Resources]  # what is left on each NUMA node, by its number


@dataclass(frozen=True, slots=True)
class Share:
    """What one instance takes of its host. `node`: the NUMA node to which it is bound; None: to none, or
    it is not known to which it will be."""

    takes: Resources
    node: int | None = None


def usable(nodes: Iterable[NumaNode], overcommit: float, keep: Resources) -> dict[int, Resources]:
    """Return what instances may take of each NUMA node.

    `keep`: what the host keeps for itself, in equal parts; CPUs that are left over come from the first.
    """
    every = sorted(nodes, key=lambda node: node.number)
    found = {}
    for place, node in enumerate(every):
        cpus = keep.cpus // len(every) + (place < keep.cpus % len(every))
        memory_mb = -(-keep.memory_mb // len(every))
        found[node.number] = Resources(int(node.cpus * overcommit) - cpus, node.memory_mb - memory_mb)
    return found


def left_on(whole: Left, shares: Iterable[Share]) -> dict[int, Resources]:
    """Return what these leave. Those of which the NUMA node is not known are put where each would go
    now, the largest first; one that fits on none takes a part of several."""
    left, homeless = dict(whole), []
    for share in shares:
        if share.node in left:
            left[share.node] = left[share.node] - share.takes
        else:
            homeless.append(share.takes)
    for takes in sorted(homeless, key=lambda r: (r.memory_mb, r.cpus), reverse=True):
        node = roomiest(left, takes) if fits(whole, takes) else None
        if node is None:
            _spread(left, takes)
        else:
            left[node] = left[node] - takes
    return left


def choose(whole: Left, others: Iterable[Instance], shape: Resources) -> int | None:
    """Return to which NUMA node an instance is bound that comes to a host beside `others`.

    None: it is larger than all of them, and is bound to none; or none has the memory left. Where those
    that run leave it its CPUs, those that stand still count only for the choice among such.
    """
    if not fits(whole, shape):
        return None
    there = [one for one in others if one.occupies_memory]
    left = left_on(whole, (Share(one.resources, one.numa) for one in there))
    now = left_on(whole, (Share(one.in_use, one.numa) for one in there))
    at_once = {number: left[number] for number, room in now.items() if shape.cpus <= room.cpus}
    first = roomiest(at_once, shape)
    return roomiest(left, shape) if first is None else first


def roomiest(left: Left, shape: Resources) -> int | None:
    """Return which NUMA node an instance of that shape takes; None: none has the memory.

    Of those that have it the one with the most free CPUs: what runs there shares the speed of its
    memory. So it has the CPUs, too, wherever any has both.
    """
    fitting = [number for number, room in left.items() if shape.memory_mb <= room.memory_mb]
    return min(fitting, key=lambda n: (-left[n].cpus, -left[n].memory_mb, n), default=None)


def fits(left: Left, shape: Resources) -> bool:
    """Return True if one NUMA node has both."""
    return any(shape.fits(room) for room in left.values())


def places(left: Left, shape: Resources) -> int:
    """Return how many instances of that shape fit, each on one NUMA node."""
    return sum(
        max(0, min(room.cpus // shape.cpus, room.memory_mb // shape.memory_mb)) for room in left.values()
    )


def _spread(left: dict[int, Resources], takes: Resources) -> None:
    """Take it where most is left, a part of each if need be; whatever is lacking, from the last."""
    by_room = sorted(left, key=lambda n: (-left[n].memory_mb, -left[n].cpus, n))
    for number in by_room:
        room = left[number]
        part = Resources(max(0, min(takes.cpus, room.cpus)), max(0, min(takes.memory_mb, room.memory_mb)))
        left[number], takes = room - part, takes - part
    if by_room and takes != NOTHING:
        left[by_room[-1]] = left[by_room[-1]] - takes
