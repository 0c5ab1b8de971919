"""Tables of played scenarios: ours beside the figures of a paper, and two plays side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from backfill.sim.scenarios.measures import measures
from backfill.sim.scenarios.player import Outcome
from backfill.sim.scenarios.pool_day import PoolDay
from backfill.sim.scenarios.scenario import Measure, PaperFigure, Scenario

_UNITS = {Measure.THROUGHPUT: ("{:.1f} jobs/h", 1.0), Measure.UTILISATION: ("{:.1f} %", 100.0)}
_UNKNOWN = "not known"


def against_the_paper(scenario: Scenario) -> Iterator[str]:
    """Yield the lines of a table, if there is a paper; plays each variant."""
    rows = paper_rows(scenario)
    if not rows:
        return
    rows.insert(0, ("", "", "paper", "ours"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(cells).rstrip()


def paper_rows(scenario: Scenario) -> list[tuple[str, str, str, str]]:
    """Measure, variant, the paper's figure, ours; plays each variant."""
    if not scenario.paper:
        return []
    found = {name: measures(scenario, name) for name in scenario.variants}
    return [_row(figure, found) for figure in scenario.paper]


def _row(figure: PaperFigure, found: Mapping[str, Mapping[Measure, float]]) -> tuple[str, str, str, str]:
    ours = found[figure.variant][figure.measure]
    theirs = figure.paper or _UNKNOWN
    if figure.against:
        other = found[figure.against][figure.measure]
        text = f"{ours / other:.2f} x" if other else _UNKNOWN
        return (figure.measure, f"{figure.variant} / {figure.against}", theirs, text)
    return (figure.measure, figure.variant, theirs, figure_text(figure.measure, ours))


def figure_text(measure: Measure, value: float) -> str:
    """Write a figure with its unit, for people."""
    form, scale = _UNITS.get(measure, ("{:.1f} s", 1.0))
    return form.format(value * scale)


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario that was played, under the policy `name`; without `measures` on a lab.

    `day`: what became of payloads, where the scenario has some.
    """

    name: str
    outcome: Outcome
    measures: Mapping[Measure, float] = field(default_factory=dict)
    day: PoolDay | None = None


def beside_one_another(plays: Sequence[Play]) -> list[tuple[str, ...]]:
    """Rows of a table: a measure, and its figure in each play."""
    return [
        ("", *(play.name for play in plays)),
        *((m, *(figure_text(m, play.measures[m]) for play in plays)) for m in Measure),
    ]
