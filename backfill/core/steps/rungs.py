"""Which rung of the ladder a node is on, and the next one, as fields of its record."""

from __future__ import annotations

from backfill.core.draft import Draft
from backfill.core.lifecycle import ManagedNode
from backfill.core.policies.ladder import RungRule


def on_rung(draft: Draft, index: int) -> dict[str, object]:
    """On the `index`-th rung from now on."""
    kind = draft.policies.ladder.rule(index).rung
    return {"rung": index, "rung_kind": kind, "rung_since_s": draft.now_s}


def next_rung(draft: Draft, node: ManagedNode) -> dict[str, object]:
    """One rung further than now."""
    return on_rung(draft, _place(draft, node) + 1)


def rule_after(draft: Draft, node: ManagedNode) -> RungRule:
    """The rule of the next rung."""
    return draft.policies.ladder.rule(_place(draft, node) + 1)


def past_the_last(draft: Draft, node: ManagedNode) -> bool:
    """Whether no rung is left but to stand still."""
    return draft.policies.ladder.over(_place(draft, node))


def _place(draft: Draft, node: ManagedNode) -> int:
    return draft.policies.ladder.place(node.rung, node.rung_kind)
