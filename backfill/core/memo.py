"""What earlier plans found out and what still holds, because nothing has touched it since.

A plan is a function of the world and the policies alone. Most of the world does not change from one
plan to the next, so the plan keeps what it found out about a node, a host or the queue until a
change touches that. Everything here could be thrown away at any moment: the next plan would be
the same, only slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from backfill.core import changes as ch
from backfill.core.cluster import Node
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.plan import Refusal
from backfill.core.policies.demand import Need
from backfill.core.quantities import Resources
from backfill.core.touched import Touched

if TYPE_CHECKING:
    from backfill.core.policy import PolicySet
    from backfill.core.world import World

Refusals = dict[tuple[str, str], Refusal]


@dataclass(frozen=True, slots=True)
class Settled:
    """A step that led to nothing. So it would again until `wake_at_s`, or until it is touched.

    `rooms`: which state of all hosts' rooms it looked at; -1: it did not.
    """

    wake_at_s: float
    refusals: Refusals
    rooms: int


@dataclass(slots=True)
class Rooms:
    """Hosts with room for one more instance, and why the others have none."""

    open: list[tuple[str, Resources]]
    why_not: dict[str, str]
    _refusals: Refusals | None = None

    def refusals(self) -> Refusals:
        """That there is no new instance on any of the others."""
        if self._refusals is None:
            what = "a new instance"
            self._refusals = {(h, what): Refusal(h, what, why) for h, why in self.why_not.items()}
        return self._refusals

    def gist(self) -> object:
        """All that a node can see of it that looks for another host than its own."""
        return list(self.open), list(self.why_not.items())[-2:]


class Memo:
    """Kept by the world, which tells it of every change before taking it in."""

    def __init__(self) -> None:
        self.valid = False  # between the beginning of a plan and the next change
        self.settled: dict[str, Settled] = {}
        self.there: set[str] = set()  # claims whose job was seen on its nodes
        self.suspects: set[str] = set()  # names whose instances may be orphans
        self.need: Need | None = None
        self.supply_cpus = 0
        self.idle: dict[str, ManagedNode] = {}
        self.booting: set[str] = set()
        self.looked = False  # whether the rooms were asked for
        self._rooms: Rooms | None = None
        self._room_of: dict[str, tuple[str, Resources | None]] = {}
        self._rooms_state = 0
        self._gist: object = None
        self._supply: dict[str, int] = {}
        self._policies: PolicySet | None = None
        self._fresh_until_s = 0.0
        self._touched = Touched()

    # --- changes -------------------------------------------------------------------------------

    def tell(self, world: World, change: ch.Change) -> None:
        """The world is about to take this change."""
        if self._touched.by(world, change):
            self.valid = False

    # --- plans ---------------------------------------------------------------------------------

    def begin(self, world: World, policies: PolicySet) -> None:
        """A plan begins: forget what was touched. With old pictures nothing here may be used."""
        touched = self._touched
        if policies is not self._policies or touched.everything:
            self._forget_all(world)
            self._policies = policies
        elif touched.names or touched.hosts or touched.queue:
            self._forget(world, touched)
        else:
            self.valid = self._fresh(world, policies)
            return
        self._touched = Touched(everything=False)
        cpus = policies.instances.flavour.cpus
        for name in touched.names:
            self._count(name, world.managed.get(name), world.nodes.get(name), cpus)
        self.valid = self._fresh(world, policies)

    def _forget_all(self, world: World) -> None:
        self.settled.clear()
        self.there.clear()
        self.need = None
        self._room_of.clear()
        self._rooms = None
        self._rooms_state += 1
        self._touched.names.update(world.managed, self._supply)
        self.suspects.update(name for _, name in world.instances)

    def _forget(self, world: World, touched: Touched) -> None:
        for host in touched.hosts:
            self._room_of.pop(host, None)
            touched.names.update(node.name for node in world.managed_on(host))
            self.there.difference_update(world.claims_on(host))
        if touched.hosts:
            self._rooms = None
        for name in touched.names:
            self.settled.pop(name, None)
        self.suspects |= touched.names
        if touched.queue:
            self.need = None

    def _count(self, name: str, node: ManagedNode | None, seen: Node | None, cpus: int) -> None:
        """What the node offers to waiting jobs, as `scaling` counts it."""
        self.supply_cpus -= self._supply.pop(name, 0)
        self.booting.discard(name)
        self.idle.pop(name, None)
        offers = 0
        if node is None:
            return
        if node.phase is Phase.BOOTING:
            self.booting.add(name)
            offers = cpus
        elif node.phase is Phase.READY:
            if node.idle_since_s:
                self.idle[name] = node
            if seen is not None and not seen.drained:
                offers = max(0, cpus - seen.cpus_allocated)
        if offers:
            self._supply[name] = offers
            self.supply_cpus += offers

    def _fresh(self, world: World, policies: PolicySet) -> bool:
        """Whether no picture is too old to be acted upon: then age makes no difference."""
        if world.now_s > self._fresh_until_s:
            read = [s.seen_s for s in world.sources.values() if s.seen_s]
            self._fresh_until_s = min(read, default=0.0) + policies.limits.stale_after_s
        slurm = world.sources.get("slurm")
        return slurm is not None and slurm.seen_s > 0.0 and world.now_s <= self._fresh_until_s

    def end(self) -> None:
        """The plan is made: outside of it nobody may rely on what is here."""
        self.valid = False

    # --- rooms ---------------------------------------------------------------------------------

    def rooms(
        self, policies: PolicySet, look: Callable[[str], tuple[str, Resources | None]]
    ) -> Rooms:
        """All hosts' rooms; `look` says of one host why it has none, or how much."""
        self.looked = True
        if not self.valid or policies is not self._policies:
            return _collect((host, look(host)) for host in policies.hosts)
        if self._rooms is None:
            for host in policies.hosts:
                if host not in self._room_of:
                    self._room_of[host] = look(host)
            self._rooms = _collect((host, self._room_of[host]) for host in policies.hosts)
            if self._rooms.gist() != self._gist:
                self._gist = self._rooms.gist()
                self._rooms_state += 1
        return self._rooms

    def holds(self, settled: Settled, now_s: float) -> bool:
        """Whether the step would lead to nothing again."""
        if now_s >= settled.wake_at_s:
            return False
        return settled.rooms < 0 or (self._rooms is not None and settled.rooms == self._rooms_state)

    def settle(self, name: str, wake_at_s: float, refusals: Refusals) -> None:
        """The step of this node led to nothing."""
        rooms = self._rooms_state if self.looked else -1
        self.settled[name] = Settled(wake_at_s, refusals, rooms)


def _collect(found: Iterable[tuple[str, tuple[str, Resources | None]]]) -> Rooms:
    rooms = Rooms([], {})
    for host, (why, left) in found:
        if left is None:
            rooms.why_not[host] = why
        else:
            rooms.open.append((host, left))
    return rooms
