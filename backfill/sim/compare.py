"""Two policies on the same input: one sentence for each difference."""

from __future__ import annotations

from collections.abc import Iterator

from backfill.sim.figures import FIGURES, Figure, Summary

# What differs by less than this share of the larger value is not told.
_SAME = 0.005


def differences(one: str, first: Summary, other: str, second: Summary) -> Iterator[str]:
    """How `other` differs from `one`, the most telling figures first; a sentence each."""
    told = False
    for figure in FIGURES:
        before, after = figure.of(first), figure.of(second)
        if abs(after - before) > _SAME * max(abs(before), abs(after)):
            told = True
            yield _sentence(figure, one, before, other, after)
    for rung in sorted({*first.evictions.by_rung, *second.evictions.by_rung}):
        counts = [s.evictions.by_rung.get(rung, 0) for s in (first, second)]
        if counts[0] != counts[1]:
            told = True
            yield f"Preemptions by {rung}: {counts[1]} with {other}, {counts[0]} with {one}."
    if not told:
        yield f"{other} makes no difference to {one} on this input."


def _sentence(figure: Figure, one: str, before: float, other: str, after: float) -> str:
    verb = "rises" if after > before else "falls"
    change = ""
    if figure.unit == "%":
        change = f" ({100 * (after - before):+.1f} points)"
    elif before:
        change = f" ({100 * (after - before) / abs(before):+.1f} %)"
    verdict = ""
    if figure.better:
        good = (after > before) == (figure.better > 0)
        verdict = f", which is {'better' if good else 'worse'}"
    title = figure.title[0].upper() + figure.title[1:]
    return (
        f"{title}: {verb} from {figure.shown(before)} with {one} to {figure.shown(after)} "
        f"with {other}{change}{verdict}."
    )
