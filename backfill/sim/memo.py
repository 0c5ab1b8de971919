"""What earlier plans of a replay found out and still holds, because nothing has touched it since.

A plan is a function of the world and the policies alone, and most of the world does not change from
one plan to the next. Everything here could be thrown away at any moment: the next plan would be
the same, only slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.placement import candidates
from backfill.core.plan import Refusal
from backfill.core.policies.demand import Need
from backfill.core.policy import PolicySet
from backfill.core.quantities import Resources
from backfill.core.world import World
from backfill.sim.touched import Touched

if TYPE_CHECKING:
    from backfill.sim.kept_plan import KeepingWorld

Refusals = dict[tuple[str, str], Refusal]
_WHAT = "a new instance"


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """A step that led to nothing. So it would again until `wake_at_s`, or until it is touched."""

    wake_at_s: float
    refusals: Refusals


class Memo:
    """Begin every plan with `begin`; nothing else may be used before, or where it says False."""

    def __init__(self) -> None:
        self.awake: set[str] = set()  # names of managed nodes whose step must be taken
        self.said: Refusals = {}  # by the steps that need not be taken
        self.claims: set[str] = set()  # claims that must be looked at
        self.suspects: set[str] = set()  # names whose instances may be orphans
        self.need: Need | None = None
        self.supply_cpus = 0
        self.idle: set[str] = set()
        self.booting: set[str] = set()
        self.takers: dict[str, tuple[str, ...]] = {}  # by host
        self.touched = Touched(self.takers)
        self.touched.all()
        self._policies: PolicySet | None = None
        self._fresh_until_s = 0.0
        self._settled: dict[str, Settled] = {}
        self._wakes: list[tuple[float, int, str, Settled]] = []  # a heap; void ones included
        self._count_wakes = 0
        self._supply: dict[str, int] = {}
        self._by_rooms: set[str] = set()  # settled after a look at the rooms
        self.open: dict[str, Resources] = {}  # hosts with room for one more instance
        self.shut: Refusals = {}  # of a new instance on each of the others
        self.view: PolicySet | None = None  # with the hosts that a node must look at to move
        self._shaken: set[str] = set()  # hosts whose room may differ
        self._alone: dict[str, PolicySet] = {}  # the policies with one host each
        self._gist: object = None

    # --- plans ---------------------------------------------------------------------------------

    def begin(self, world: KeepingWorld, policies: PolicySet) -> bool:
        """Forget what was touched. False: a picture is too old, so age makes a difference."""
        touched = self.touched
        if policies is not self._policies:
            self._policies = policies
            self._alone = {host: replace(policies, hosts=(host,)) for host in policies.hosts}
            self.view, self._gist = policies, None
            self.open.clear()
            self.shut.clear()
            touched.all()
        self.touched = Touched(self.takers)
        if touched.everything:
            self._forget_all(world, touched)
        self._forget(world, touched)
        cpus = policies.instances.flavour.cpus
        for name in touched.names:
            node = world.managed.get(name)
            self.rouse(name)
            if node is None:
                self.awake.discard(name)
            self._count(world, name, node, cpus)
        while self._wakes and self._wakes[0][0] <= world.now_s:
            _, _, name, settled = heappop(self._wakes)
            if self._settled.get(name) is settled:
                self.rouse(name)
        return self._fresh(world, policies)

    def _forget_all(self, world: KeepingWorld, touched: Touched) -> None:
        touched.names.update(world.managed, self._supply, self._settled, self.awake)
        touched.names.update(name for _, name in world.instances)
        touched.hosts.update(world.hosts, self._alone)
        touched.claims.update(world.claims)
        touched.queue = True

    def _forget(self, world: KeepingWorld, touched: Touched) -> None:
        for host in touched.hosts:
            touched.names.update([node.name for node in world.managed_on(host)])
            self.claims.update(world.claims_on(host))
        self._shaken |= touched.hosts
        self._shaken |= touched.rooms
        self.claims |= touched.claims
        self.suspects |= touched.names
        if touched.queue:
            self.need = None

    def rouse(self, name: str) -> None:
        """What was found out about the node is void."""
        self.awake.add(name)
        settled = self._settled.pop(name, None)
        if settled is not None:
            self._by_rooms.discard(name)
            for key in settled.refusals:
                del self.said[key]

    def _count(self, world: World, name: str, node: ManagedNode | None, cpus: int) -> None:
        """What the node offers to waiting jobs, as the plan counts it."""
        self.supply_cpus -= self._supply.pop(name, 0)
        self.booting.discard(name)
        self.idle.discard(name)
        if node is None:
            return
        offers = 0
        if node.phase is Phase.BOOTING:
            self.booting.add(name)
            offers = cpus
        elif node.phase is Phase.READY:
            if node.idle_since_s:
                self.idle.add(name)
            seen = world.nodes.get(name)
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

    # --- steps ---------------------------------------------------------------------------------

    @property
    def resting(self) -> int:
        """Number of managed nodes whose step need not be taken."""
        return len(self._settled)

    @property
    def wake_at_s(self) -> float:
        """When the first of the steps that led to nothing may lead to something."""
        while self._wakes and self._settled.get(self._wakes[0][2]) is not self._wakes[0][3]:
            heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else inf

    def settle(self, name: str, wake_at_s: float, refusals: Refusals, *, looked: bool) -> None:
        """The step of this node led to nothing; `looked`: at the rooms on other hosts."""
        settled = self._settled[name] = Settled(wake_at_s, refusals)
        self.awake.discard(name)
        self.said.update(refusals)
        if wake_at_s < inf:
            self._count_wakes += 1
            heappush(self._wakes, (wake_at_s, self._count_wakes, name, settled))
        if looked:
            self._by_rooms.add(name)

    # --- rooms ---------------------------------------------------------------------------------

    def look_for_rooms(self, world: World) -> None:
        """Ask again on hosts where something was touched. Some settled nodes may awake by that."""
        if not self._shaken or self._policies is None:
            return
        for host in self._shaken:
            self._look(world, host)
        self._shaken.clear()
        if self._policies.ladder.migrates:
            self._tell_others(self._policies)

    def _look(self, world: World, host: str) -> None:
        alone = self._alone.get(host)
        if alone is None:
            return  # no host of the policy
        free, why_not = candidates(world, alone)
        self.open.pop(host, None)
        self.shut.pop((host, _WHAT), None)
        for name, left in free:
            self.open[name] = left
        for name, why in why_not.items():
            self.shut[name, _WHAT] = Refusal(name, _WHAT, why)

    def _tell_others(self, policies: PolicySet) -> None:
        """A node that looks for another host sees those with room, or why the last has none."""
        shut = (host for host in reversed(policies.hosts) if host not in self.open)
        last = tuple(islice(shut, 2))  # two, because one may be its own
        gist = ({**self.open}, [self.shut[host, _WHAT].reason for host in last], last)
        if gist == self._gist:
            return
        self._gist = gist
        seen = {*self.open, *last}
        self.view = replace(policies, hosts=tuple(h for h in policies.hosts if h in seen))
        for name in tuple(self._by_rooms):
            self.rouse(name)
