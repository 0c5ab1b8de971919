"""Tells the simulated world whose call is under way and what it rests on, for its audit."""

from __future__ import annotations

from backfill.core.model import actions as act
from backfill.core.policies.budgets import Budget, Of
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.drivers.simulated.losses import Deed

_OF_LITTLE_WEIGHT = Deed("the daemon")
_ENDING = (act.DeleteInstance, act.RequeueJob, act.CancelJob, act.DownNode)


def deed_of(action: act.DriverAction, world: World, policies: PolicySet, now_s: float) -> Deed:
    """Return what this call, which begins now, rests on; `now_s` is the true time.

    One that is tried again is decided again: what it rested on the first time may be over.
    """
    if not isinstance(action, _ENDING):
        return Deed("the daemon", action.reason) if action.reason else _OF_LITTLE_WEIGHT
    order, pressed = _order(world, action.subject), _pressed(world, policies, action.subject)
    barred_s = _barred_s(world, policies, now_s)
    return Deed("the daemon", action.reason, now_s, policies, order, pressed, barred_s)


def _order(world: World, name: str) -> str | None:
    """Return an admin's order that gives up what is on the node, or None."""
    node = world.managed.get(name)
    hosts = set(node.hosts) if node is not None else set()
    for host in sorted(hosts):
        if host in world.off:
            return f"{host} is off for good: {world.off[host]}"
        if node is not None and node.doomed and host in world.burst:
            return f"room on {host} is wanted back: {node.reason}"
    return None


def _barred_s(world: World, policies: PolicySet, now_s: float) -> float:
    """Return until when a budget lets no instance work at all, by the true time."""
    ends = [budget.until_s(world.clock_s) for budget in policies.budgets.windows if _bars_all(budget)]
    left_s = max((end_s - world.clock_s for end_s in ends if end_s is not None), default=0.0)
    return now_s + left_s


def _bars_all(budget: Budget) -> bool:
    return budget.of is Of.INSTANCES and budget.nodes.rstrip("%") == "0"


def _pressed(world: World, policies: PolicySet, name: str) -> str | None:
    """Why the node has to leave its host although Slurm leaves that alone, or None."""
    node = world.managed.get(name)
    for subject in (name, node.host if node is not None else ""):
        if subject in world.closed:
            return f"{subject} was closed by hand: {world.closed[subject]}"
    return "a budget may push it aside" if policies.budgets.windows else None
