"""Fleets: whatever fails, an order comes true as a whole or leaves nothing behind."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.fleet import CloneMethod, Flavour, Fleet, FleetState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.cloning import Cloning
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Order, Spread
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.libvirt.connection.domain_xml import mac_address
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.fleet_answers import fleet_told
from backfill.engine.fleet_order import fleet_order, leaving
from backfill.ports.errors import NoCapacityError, RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal

HOSTS = ("bm1", "bm2")
NAMES = tuple(f"vn{i}" for i in range(1, 13))
GIVE_UP_AFTER = 3


def policies(order: Order = Order.SPREAD, **limits: int) -> PolicySet:
    return PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",)),
        instances=Template(
            names=NAMES,
            addresses=tuple(f"10.77.1.{i}/16" for i in range(1, 13)),
            flavour=Flavour(cpus=1, memory_mb=256),
        ),
        hosts=HOSTS,
        scale=Scale(idle_s=20, boot_within_s=30, retry_after_s=5, give_up_after=GIVE_UP_AFTER),
        cloning=Cloning(at_once_per_host=2),
        placement=Spread(order=order, cpu_overcommit=2.0),
        limits=Limits(**limits),
    )


class Site:
    """Two hosts of two CPUs, overcommitted twice, and a daemon that gets orders."""

    def __init__(self, rules: PolicySet | None = None) -> None:
        self.rules = rules or policies()
        self.sim = SimulatedWorld()
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.checks.overcommit = self.rules.placement.cpu_overcommit
        for host in HOSTS:
            self.sim.add_host(host, cpus=2, node=False)
        self.run = Rehearsal(self.sim, self.rules, MemoryJournal())
        self.run.run(5.0)

    def order(self, size: int, **body: object) -> str:
        fleet = fleet_order(self.run.world, self.rules, {"n": size, **body})
        self.feed(fleet)
        return fleet.id

    def feed(self, fleet: Fleet) -> None:
        self.run.cycle.take([ch.FleetSet(fleet)])
        self.run._decide()

    def fleet(self, identity: str) -> Fleet:
        return self.run.world.fleets[identity]

    def settled(self) -> bool:
        return self.run.alive and all(f.settled for f in self.run.world.fleets.values())

    def instances(self) -> list[str]:
        return [name for host in self.sim.hosts.values() for name in host.instances]

    def sound(self) -> bool:
        """Nothing is shared and no host is promised more than twice its CPUs."""
        names = Counter(self.instances())
        assert set(names.values()) <= {1}, names
        specs = [i.spec for host in self.sim.hosts.values() for i in host.instances.values()]
        assert len({spec.address for spec in specs}) == len(specs)
        assert len({mac_address("sim", spec.name) for spec in specs}) == len(specs)
        assert all(len(host.instances) <= 4 for host in self.sim.hosts.values())
        return True


def kill(site: Site) -> None:
    if site.run.alive:
        site.run.kill()
        site.sim.at(site.sim.now_s + 3.0, site.run.start)


def cut(site: Site) -> None:
    site.sim.cut_host("bm1")
    site.sim.at(site.sim.now_s + 8.0, lambda: site.sim.join_host("bm1"))


ACCIDENTS = {
    "no answer": lambda s: s.sim.faults.fail("create", UnreachableError("vn", "silent"), times=2),
    "full": lambda s: s.sim.faults.fail("create", NoCapacityError("vn", "full"), times=3),
    "refused": lambda s: s.sim.faults.fail("create", RefusedError("vn", "no image"), times=1),
    "lost": lambda s: s.sim.faults.fail("create", UnreachableError("vn", "?"), acts=True),
    "one bad boot": lambda s: s.sim.faults.never_boots("vn2", 1),
    "no boot": lambda s: s.sim.faults.never_boots("vn3", -1),
    "kill": kill,
    "cut": cut,
}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=2),
    st.lists(st.tuples(st.sampled_from(sorted(ACCIDENTS)), st.integers(0, 12).map(float)), max_size=3),
    st.sampled_from(list(Order)),
)
def test_all_or_nothing(sizes: list[int], wrong: list[tuple[str, float]], order: Order) -> None:
    """Random orders, random failures: complete fleets, or not one instance of them."""
    site = Site(policies(order))
    for kind, at_s in wrong:
        site.sim.at(site.sim.now_s + at_s, partial(ACCIDENTS[kind], site))
    for size in sizes:
        site.order(size)
    site.run.until(lambda: site.sound() and site.settled(), 2000)
    site.sim.faults.clear()
    ready = [f for f in site.run.world.fleets.values() if f.state is FleetState.READY]
    for fleet in site.run.world.fleets.values():
        assert fleet.state is FleetState.READY or fleet.reason
    wanted = sorted(name for fleet in ready for name in fleet.members)
    assert len(set(wanted)) == sum(fleet.size for fleet in ready)
    site.run.until(lambda: site.sound() and sorted(site.instances()) == wanted, 300)


def test_a_fleet_is_made_and_goes_when_it_is_told() -> None:
    """All members at once, as many at the same time as the limits say; no idleness ends it."""
    site = Site()
    identity = site.order(6, method="instant")
    site.run.until(site.settled, 200)
    fleet = site.fleet(identity)
    assert (fleet.state, len(fleet.members)) == (FleetState.READY, 6)
    methods = {i.spec.method for h in site.sim.hosts.values() for i in h.instances.values()}
    assert methods == {CloneMethod.INSTANT}
    shown = fleet_told(site.run.world, fleet)
    assert shown["ready"] == 6
    site.run.run(200.0)
    assert len(site.instances()) == 6
    site.feed(leaving(site.run.world, identity))
    site.run.until(lambda: not site.run.world.fleets, 200)
    assert site.instances() == []


def test_a_member_that_fails_is_tried_again() -> None:
    """One bad start does not undo the others."""
    site = Site()
    site.sim.faults.never_boots("vn2", 1)
    identity = site.order(3)
    site.run.until(site.settled, 400)
    assert site.fleet(identity).state is FleetState.READY
    assert site.fleet(identity).retries == 1


def test_a_member_that_never_comes_undoes_all_and_says_why() -> None:
    """Nothing is left, the reason names the member, and its names are free again."""
    site = Site()
    site.sim.faults.never_boots("vn2", -1)
    identity = site.order(4)
    site.run.until(site.settled, 2000)
    fleet = site.fleet(identity)
    assert fleet.state is FleetState.FAILED
    assert "vn2 failed 3 times" in fleet.reason
    assert site.instances() == []
    assert not [m for m in site.run.world.managed.values() if m.fleet]
    site.sim.faults.clear()
    again = site.order(4)
    site.run.until(site.settled, 400)
    assert site.fleet(again).state is FleetState.READY


def test_orders_wait_for_room_in_order() -> None:
    """The second order begins when the first has gone, and not by taking half of the room."""
    site = Site()
    first, second = site.order(6), site.order(6)
    site.run.run(60.0)
    assert site.fleet(first).state is FleetState.READY
    assert site.fleet(second).state is FleetState.WAITING
    assert any("there is room for only 2 of" in why(r) for r in site.run.cycle.last.refusals)
    site.feed(leaving(site.run.world, first))
    site.run.until(lambda: site.fleet(second).state is FleetState.READY, 400)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"n": 9}, "all hosts together have room for 8"),
        ({"n": 13}, "instances.names has 12 names"),
        ({"n": 0}, "one instance at least"),
        ({"n": "many"}, "needs a number"),
        ({"n": 2, "method": "magic"}, "'magic' is no way of cloning"),
    ],
)
def test_what_can_never_be_is_refused_at_once(body: dict[str, object], why: str) -> None:
    """No waiting helps: one sentence, and no order."""
    site = Site()
    with pytest.raises(CommandError, match=why):
        fleet_order(site.run.world, site.rules, body)


def test_a_restart_goes_on_with_the_order() -> None:
    """The order is remembered; members that were begun are not begun twice."""
    site = Site()
    identity = site.order(5)
    site.run.run(1.0)
    site.run.kill()
    site.run.run(2.0)
    site.run.start()
    site.run.until(lambda: site.sound() and site.settled(), 400)
    assert site.fleet(identity).state is FleetState.READY
    ready = [m for m in site.run.world.managed.values() if m.phase is Phase.READY]
    assert len(ready) == 5
