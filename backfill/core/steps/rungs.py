"""Which rung of the ladder a node is on, and the next one, as the stop in its record."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.lifecycle import ManagedNode, NodeStop
from backfill.core.plan_builder import PlanBuilder
from backfill.core.policies.ladder import RungRule


def first_rung(builder: PlanBuilder, *, doomed: bool = False) -> NodeStop:
    """A stop that begins now."""
    kind = builder.policies.ladder.rule(0).rung
    return NodeStop(float(builder.now_s), kind=kind, doomed=doomed)


def next_rung(builder: PlanBuilder, node: ManagedNode) -> NodeStop:
    """Its stop, one rung further than now."""
    index = _place(builder, node) + 1
    kind = builder.policies.ladder.rule(index).rung
    return replace(node.stopping, since_s=float(builder.now_s), rung=index, kind=kind)


def rule_after(builder: PlanBuilder, node: ManagedNode) -> RungRule:
    """The rule of the next rung."""
    return builder.policies.ladder.rule(_place(builder, node) + 1)


def past_the_last(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether no rung is left but to stand still."""
    return builder.policies.ladder.over(_place(builder, node))


def _place(builder: PlanBuilder, node: ManagedNode) -> int:
    stop = node.stopping
    return builder.policies.ladder.place(stop.rung, stop.kind)
