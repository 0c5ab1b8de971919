"""The report's part about payloads: what pilots have brought, by day and pilot, and what was lost and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from backfill.core.model.quantities import counted
from backfill.engine.payload_book import PayloadSums
from backfill.ui.report.style import escape
from backfill.ui.report.timeline import Chart

_MOST_PILOTS = 200
_COLUMNS = ("payloads done", "they worked", "runs lost", "these had worked", "lost because of us", "causes")


def payloads_section(chart: Chart) -> str:
    """Return the books of the daemon, or nothing if it has asked no pool."""
    days, pilots = chart.payload_days, chart.payload_pilots
    if not days:
        return ""
    rows = [_row(day, sums) for day, sums in days.items()]
    if len(days) > 1:
        rows.append(_row("in all", together(days.values())))
    shown = [_row(f"{pilot} {chart.names.get(pilot, '')}".strip(), sums) for pilot, sums in pilots.items()]
    left = len(shown) - _MOST_PILOTS
    more = f"; the latest {_MOST_PILOTS} of them" if left > 0 else ""
    return (
        "<h2>What pilots have brought</h2>"
        '<p class="soft">By the pool\'s account of each run, by the day (UTC) on which it ended. A run that '
        "failed while we gave up its pilot's work has our cause; any other was not by us.</p>"
        f'<div class="scroll">{_table("day", rows)}</div>'
        f"<details><summary>by {counted(len(pilots), 'pilot')}{more}</summary>"
        f'<div class="scroll">{_table("job of the pilot", shown[:_MOST_PILOTS])}</div></details>'
    )


def rivals_section(rows: Sequence[Sequence[str]]) -> str:
    """Return a scenario's own way beside others: a table whose head comes first."""
    if not rows:
        return ""
    head, *body = rows
    cells = "".join(f"<th>{escape(title)}</th>" for title in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return (
        "<h2>The same story in other ways</h2>"
        '<p class="soft">Drawn from the same seed. Shares are of the time in which hosts were wanted.</p>'
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'
    )


def figures(chart: Chart) -> list[tuple[str, str]]:
    """Return the numbers by which one remembers it, and what they are."""
    if not chart.payload_days:
        return []
    all_of_it = together(chart.payload_days.values())
    return [
        (str(all_of_it.done), "payloads done in pilots"),
        (_share(all_of_it), "of what payloads worked was lost because of us"),
    ]


def together(parts: Iterable[PayloadSums]) -> PayloadSums:
    """Add them up."""
    found = PayloadSums()
    for sums in parts:
        found.done += sums.done
        found.worked_s += sums.worked_s
        for why, (runs, worked_s) in sums.lost.items():
            line = found.lost.setdefault(why, [0.0, 0.0])
            line[0] += runs
            line[1] += worked_s
    return found


def _share(sums: PayloadSums) -> str:
    worked_s = sums.worked_s + sum(line[1] for line in sums.lost.values())
    return f"{100 * sums.lost_s / worked_s:.1f} %" if worked_s else "-"


def _row(name: str, sums: PayloadSums) -> str:
    lost: Mapping[str, list[float]] = dict(sorted(sums.lost.items()))
    causes = ", ".join(f"{why}: {int(runs)} ({worked_s:.0f} s)" for why, (runs, worked_s) in lost.items())
    cells = (
        str(sums.done),
        f"{sums.worked_s / 3600:.2f} h",
        str(int(sum(runs for runs, _ in lost.values()))),
        f"{sum(worked_s for _, worked_s in lost.values()):.0f} s",
        _share(sums),
        causes or "-",
    )
    return f"<tr><td>{escape(name)}</td>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"


def _table(first: str, rows: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in (first, *_COLUMNS))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
