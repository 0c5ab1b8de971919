"""Sets of nodes as numbers, a bit for each node; and how many CPUs are free on them.

Free CPUs are a list: the n-th set has the nodes with n free CPUs or more, the first all nodes.
"""

from __future__ import annotations


def nodes_in(bits: int) -> list[int]:
    """Return the numbers of the nodes in a set of bits, in order."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def first_of(bits: int, count: int) -> int:
    """Return the first `count` nodes of a set of bits, which has no fewer."""
    if count == 1:
        return bits & -bits
    surplus = bits.bit_count() - count
    if surplus <= 0:
        return bits
    low, high = 0, bits.bit_length()
    while True:
        middle = (low + high) // 2
        found = bits & ((1 << middle) - 1)
        have = found.bit_count()
        if have == count:
            return found
        if have < count:
            low = middle
        else:
            high = middle


def busiest(free: list[int], fit: int, need: int) -> int:
    """Return so many of these nodes, the busiest first: idle ones can do something else."""
    found = 0
    for count in range(1, len(free) + 1):
        more = fit & ~having(free, count) & ~found
        if found.bit_count() + more.bit_count() >= need:
            return found | first_of(more, need - found.bit_count())
        found |= more
    return found


def having(free: list[int], cpus: int) -> int:
    """Return the nodes with so many free CPUs."""
    return free[cpus] if cpus < len(free) else 0


def take(free: list[int], nodes: int, cpus: int) -> None:
    """Take so many CPUs of each of these nodes; they have as many."""
    if len(free) == 2:  # nodes of one CPU
        free[1] &= ~nodes
        return
    for count in range(1, len(free)):
        stays = having(free, count + cpus)
        free[count] &= ~nodes | stays


def give(free: list[int], nodes: int, cpus: int) -> None:
    """Give so many CPUs back to each of these nodes."""
    if len(free) == 2:
        free[1] |= nodes
        return
    for count in range(len(free) - 1, 0, -1):
        free[count] |= nodes & free[max(0, count - cpus)]
