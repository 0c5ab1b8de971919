"""Which rung of the ladder a node is on, and the next one, as fields of its record."""

from __future__ import annotations

from backfill.core.lifecycle import ManagedNode
from backfill.core.plan_builder import PlanBuilder
from backfill.core.policies.ladder import RungRule


def on_rung(builder: PlanBuilder, index: int) -> dict[str, object]:
    """On the `index`-th rung from now on."""
    kind = builder.policies.ladder.rule(index).rung
    return {"rung": index, "rung_kind": kind, "rung_since_s": builder.now_s}


def next_rung(builder: PlanBuilder, node: ManagedNode) -> dict[str, object]:
    """One rung further than now."""
    return on_rung(builder, _place(builder, node) + 1)


def rule_after(builder: PlanBuilder, node: ManagedNode) -> RungRule:
    """The rule of the next rung."""
    return builder.policies.ladder.rule(_place(builder, node) + 1)


def past_the_last(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Whether no rung is left but to stand still."""
    return builder.policies.ladder.over(_place(builder, node))


def _place(builder: PlanBuilder, node: ManagedNode) -> int:
    return builder.policies.ladder.place(node.rung, node.rung_kind)
