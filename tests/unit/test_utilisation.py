"""How busy hosts are: counted between two looks, told when it changes, and obeyed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.policies.spread import Order, Spread
from backfill.core.world import World
from backfill.drivers.libvirt.connection.utilisation import CpuMeter
from backfill.engine.observe import host_changes
from backfill.ports.provider import HostObservation

_S = 1_000_000_000
HOST = Host("bm1", "bm1", Resources(4, 4000), busy=0.2)


def test_the_share_is_of_the_time_since_the_last_look() -> None:
    """Not since the host was booted; looks within a second count as one."""
    meter = CpuMeter()
    looks = [
        (90.0, 100.0, None),
        (90.4, 100.8, None),
        (91.0, 104.0, 0.25),
        (0.0, 1.0, 0.25),  # it was booted anew
        (2.0, 3.0, 1.0),
    ]
    for used_s, all_s, busy in looks:
        meter.take(int(used_s * _S), int(all_s * _S))
        assert meter.busy == busy


@pytest.mark.parametrize(("busy", "news"), [(0.25, False), (0.4, True), (None, True)])
def test_a_little_more_is_no_news(busy: float | None, news: bool) -> None:
    """Otherwise every look would be."""
    world = World()
    for change in host_changes(world, HostObservation(10.0, HOST)):
        world.apply(change)
    found = host_changes(world, HostObservation(20.0, replace(HOST, busy=busy)))
    assert any(type(change).__name__ == "HostSeen" for change in found) is news


def test_the_least_busy_host_is_chosen() -> None:
    """By tenths; among equals the one with most room; without figures it counts as half busy."""
    rooms = [(name, Resources(cpus, 1000)) for name, cpus in (("a", 4), ("b", 2), ("c", 8))]

    def best(order: Order, **busy: float) -> str:
        return min(rooms, key=lambda room: Spread(order).rank(room[1], busy.get(room[0])))[0]

    assert best(Order.IDLE, a=0.9, b=0.1, c=0.7) == "b"
    assert best(Order.IDLE, a=0.11, b=0.09, c=0.7) == "a"
    assert best(Order.IDLE, a=0.9) == "c"
    assert best(Order.IDLE) == "c"
    assert best(Order.SPREAD, a=0.0) == "c"
