"""Commands of people to the daemon: each becomes a change, and a plan follows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from backfill.core.model import changes as ch
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.world import World
from backfill.engine.checkpoint_order import CommandError, asked_checkpoint, asked_put_back
from backfill.engine.fleet_order import fleet_order, leaving

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

Body = dict[str, object]
Reader = Callable[[Body], Body]


class Commands:
    """Carries out commands in the daemon's own thread; a bad one raises CommandError or ValueError."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        orders: dict[str, Reader] = {
            "evict": self._evict,
            "reclaim": self._reclaim,
            "retry": self._retry,
            "checkpoint": self._ordered(asked_checkpoint),
            "put-back": self._ordered(asked_put_back),
            "fleet": self._fleet,
        }
        self.known = {"poke": self._poke} | {name: self._noted(order) for name, order in orders.items()}

    def _noted(self, order: Reader) -> Reader:
        """Say in the answer, as `unwritten`, why an order that was taken would not survive the daemon."""

        def answer(body: Body) -> Body:
            told, problem = order(body), self._daemon.cycle.unwritten
            return {**told, "unwritten": problem} if problem and "error" not in told else told

        return answer

    @property
    def _world(self) -> World:
        return self._daemon.world

    def _evict(self, body: Body) -> Body:
        """Close a host or node by hand (`on`), or open it again; `off`: it is off for good."""
        subject, on = str(body.get("subject", "")), bool(body.get("on", True))
        off, host = bool(body.get("off", False)), self._world.hosts.get(subject)
        if off and not on:
            return {"error": f"'{subject}' cannot be both opened and marked off for good; choose one"}
        if off and (host is None or host.reachable):
            why = "is no host" if host is None else "answers, so it is not off"
            return {"error": f"'{subject}' {why}"}
        if subject not in self._world.hosts and subject not in self._world.managed:
            return {"error": f"'{subject}' is neither a host nor a node of ours"}
        reason = str(body.get("reason", "")) or "evicted by hand"
        now_s = self._world.now_s
        self._daemon.cycle.take([ch.HoldSet(subject, now_s, on, reason, off=off)])
        self._daemon.cycle.decide()
        return {"subject": subject, "closed": on}

    def _reclaim(self, body: Body) -> Body:
        """Let only so many instances stay on a burst host (`on`), or any number again."""
        order = _reclaimed(self._world, body)
        self._daemon.cycle.take([order])
        self._daemon.cycle.decide()
        return {"subject": order.subject, "keep": order.keep if order.on else None}

    def _retry(self, body: Body) -> Body:
        """Let a given-up node be tried again: its record is dropped, so its name is free."""
        subject = str(body.get("subject", ""))
        node = self._world.managed.get(subject)
        if node is None or node.phase not in (Phase.GIVEN_UP, Phase.FAILED):
            return {"error": f"'{subject}' is not a node that failed or was given up"}
        self._daemon.cycle.take([ch.NodeForgotten(subject, node.generation)])
        self._daemon.cycle.decide()
        return {"subject": subject}

    def _ordered(self, order: Callable[[World, Body], tuple[str, list[ManagedNode]]]) -> Reader:
        """Return an order for all nodes of a job: for all of them, or a sentence why not."""

        def answer(body: Body) -> Body:
            identity, nodes = order(self._world, body)
            self._daemon.cycle.take([ch.NodeManaged(node) for node in nodes])
            self._daemon.cycle.decide()
            return {"id": identity, "nodes": [node.name for node in nodes]}

        return answer

    def _fleet(self, body: Body) -> Body:
        """Order a fleet of `n`, or let the fleet `delete` go."""
        cycle, gone = self._daemon.cycle, str(body.get("delete", ""))
        fleet = leaving(self._world, gone) if gone else fleet_order(self._world, cycle.policies, body)
        cycle.take([ch.FleetSet(fleet)])
        cycle.decide()
        return {"id": fleet.id}

    def _poke(self, body: Body) -> Body:
        self._daemon.poke()
        return {}


def _reclaimed(world: World, body: Body) -> ch.HoldSet:
    """Return how many may stay from now on; CommandError says in one sentence why not."""
    host, keep = str(body.get("subject", "")), body.get("keep", 0)
    known = world.hosts.get(host)
    if known is None:
        raise CommandError(f"'{host}' is no host of ours")
    if known.node is not None:
        raise CommandError(f"{host} is a Slurm node: clear it with `backfill evict {host}`")
    if not isinstance(keep, int) or keep < 0:
        raise CommandError(f"--keep is {keep}; give a number of instances, 0 or more")
    reason = str(body.get("reason", "")) or "wanted back by hand"
    return ch.HoldSet(host, world.now_s, bool(body.get("on", True)), reason, keep)
