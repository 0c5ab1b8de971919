"""The table of a scenario with a pool's payloads: ours beside other ways to deal with pilots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from backfill.sim.scenarios.pool_day import PoolDay, rivals
from backfill.ui.report.papers import Play

_TITLES = (
    *("", "goodput", "badput", "idle", "payload time lost", "done", "runs lost", "at work twice"),
    *("evictions", "high waits, mean", "p95"),
)


def days(plays: Sequence[Play]) -> list[PoolDay]:
    """Return ours, and its rivals, which are played for it; none where no payloads are."""
    ours = [play.day for play in plays if play.day is not None]
    return [*ours, *rivals(plays[0].outcome.scenario)] if ours else []


def rows(found: Sequence[PoolDay]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a table, its head first."""
    yield _TITLES
    for day in found:
        shares = (f"{100 * share:.1f} %" for share in (day.goodput, day.badput, day.idle, day.lost))
        counts = (str(count) for count in (day.done, day.runs_lost, day.twice, day.evictions))
        yield (day.name, *shares, *counts, f"{day.wait_mean_s:.1f} s", f"{day.wait_p95_s:.1f} s")


def documents(found: Sequence[PoolDay]) -> list[dict[str, object]]:
    """Return the days as plain data."""
    return [asdict(day) for day in found]
