"""Timelines of hosts, instances and jobs in a terminal as they grow; plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from backfill.ports.storage import Record
from backfill.ui.report.builder import TimelineBuilder
from backfill.ui.report.timeline import MEANINGS, Chart, Event, Row, Stretch, StretchKind
from backfill.ui.terminal import unguarded

_REFRESH_S = 0.125
_WINDOWS_S = (30, 60, 90, 120, 180, 300, 600, 1200, 3600, 7200, 21600, 86400)
_NAME_COLUMNS = 16
_NARROWEST = 20
_FEWEST_EVENTS = 3
_TALL = 30
_COLOURS = {"standard": 16, "256": 256, "truecolor": 1 << 24, "windows": 16}

# A glyph each, so that the picture can be read without colours; colours that people with any colour
# vision tell apart (after Okabe and Ito), and the nearest of a terminal that has only sixteen.
STYLES: dict[StretchKind, tuple[str, str, str]] = {
    StretchKind.METAL: ("█", "#2b6cb0", "blue"),
    StretchKind.WORKING: ("█", "#12805c", "green"),
    StretchKind.IDLE: ("░", "#12805c", "green"),
    StretchKind.BOOTING: ("▒", "#56b4e9", "cyan"),
    StretchKind.EVICTING: ("▓", "#d55e00", "red"),
    StretchKind.PAUSED: ("=", "#e69f00", "yellow"),
    StretchKind.ON_DISK: ("_", "#e69f00", "yellow"),
    StretchKind.MOVING: (">", "#cc79a7", "magenta"),
    StretchKind.RETURNING: ("<", "#cc79a7", "magenta"),
    StretchKind.DRAINING: ("-", "#8a8a8a", "default"),
    StretchKind.REMOVING: ("-", "#8a8a8a", "default"),
    StretchKind.WAITING: ("·", "#8a8a8a", "default"),
    StretchKind.FAILED: ("x", "#d55e00", "red"),
    StretchKind.GIVEN_UP: ("X", "#d55e00", "red"),
}
_SOLID = frozenset({StretchKind.METAL, StretchKind.WORKING})


def cells(spans: Sequence[Stretch], start_s: float, end_s: float, columns: int) -> list[Stretch | None]:
    """Choose for each column the span with most of its time, but never lose an eviction."""
    width_s = (end_s - start_s) / columns
    found: list[Stretch | None] = [None] * columns
    share_s = [0.0] * columns
    for span in spans:
        first = int((span.start_s - start_s) / width_s)
        last = min(columns - 1, int((span.end_s - start_s) / width_s))
        for column in range(max(0, first), last + 1):
            left_s = start_s + column * width_s
            covered_s = min(span.end_s, left_s + width_s) - max(span.start_s, left_s)
            if span.kind is StretchKind.EVICTING and column == first:
                covered_s = width_s * 2
            elif span.kind is StretchKind.WAITING:
                covered_s /= 100  # anything that happened is more telling
            if covered_s > share_s[column] or found[column] is None:
                found[column], share_s[column] = span, covered_s
    return found


def window_s(length_s: float) -> float:
    """Choose a round length of time that has room for `length_s` seconds."""
    return float(next((w for w in _WINDOWS_S if w >= length_s), length_s))


def picture(timeline: Chart, width: int, height: int, colours: int = 0) -> RenderableType:
    """Draw the timelines above the latest events, in `height` lines of `width` columns.

    `colours`: how many the terminal has, 0 for none.
    """
    columns = max(_NARROWEST, width - _NAME_COLUMNS - 1)
    end_s = timeline.start_s + window_s(timeline.length_s)
    drawn = [Text(_axis(timeline, end_s, columns), style="dim")]
    for title, rows in _sections(timeline, height):
        drawn.append(Text(title, style="bold"))
        for row in rows:
            drawn += _lines(row, timeline.start_s, end_s, columns, colours)
    legend = _legend(timeline, colours, width)
    drawn = drawn[: max(3, height - len(legend) - _FEWEST_EVENTS)]
    drawn += legend
    left = max(0, height - len(drawn))
    told = [e for e in timeline.events if e.main]
    for event in told[len(told) - min(left, len(told)) :]:
        line = Text(plain_line(timeline, event))
        line.truncate(width, overflow="ellipsis")
        drawn.append(line)
    return Group(*drawn[:height])


def plain_line(timeline: Chart, event: Event) -> str:
    """`  12.345 s  sentence`, counted from the timeline's beginning."""
    return f"{event.at_s - timeline.start_s:8.3f} s  {timeline.named(event.text)}"


def _sections(timeline: Chart, height: int) -> Iterator[tuple[str, tuple[Row, ...]]]:
    yield "hosts", timeline.hosts
    # The hosts show their instances already: a small window has better use for its lines.
    if height >= _TALL and timeline.instances:
        yield "instances", timeline.instances
    if timeline.jobs:
        yield "jobs", timeline.jobs


def _lines(row: Row, start_s: float, end_s: float, columns: int, colours: int) -> list[Text]:
    lines = []
    for lane in range(row.lanes):
        name = (row.label or row.name) if lane == 0 else ""
        line = Text(f"  {name[: _NAME_COLUMNS - 3]}".ljust(_NAME_COLUMNS) + " ")
        spans = [span for span in row.spans if span.lane == lane]
        _draw(line, cells(spans, start_s, end_s, columns), colours)
        lines.append(line)
    return lines


def _draw(line: Text, found: Sequence[Stretch | None], colours: int) -> None:
    """Append the columns; a solid bar carries its label where there is room and colour."""
    at = 0
    while at < len(found):
        span, end = found[at], at
        while end < len(found) and found[end] is span:
            end += 1
        if span is None:
            line.append(" " * (end - at))
        else:
            glyph, colour = _style(span.kind, colours)
            if colours and span.kind in _SOLID:
                label = span.label if len(span.label) <= end - at - 2 else ""
                line.append(f" {label}".ljust(end - at)[: end - at], style=f"white on {colour}")
            else:
                line.append(glyph * (end - at), style=colour)
        at = end


def _axis(timeline: Chart, end_s: float, columns: int) -> str:
    text = [" "] * columns
    length_s = end_s - timeline.start_s
    parts = 4 if length_s % 4 == 0 else 3
    for part in range(parts + 1):
        label = f"{length_s * part / parts:.0f}s"
        at = min(columns - len(label), columns * part // parts)
        text[at : at + len(label)] = label
    return " " * (_NAME_COLUMNS + 1) + "".join(text)


def _style(kind: StretchKind, colours: int) -> tuple[str, str]:
    glyph, fine, plain = STYLES[kind]
    return glyph, fine if colours > 16 else plain


def _legend(timeline: Chart, colours: int, width: int) -> list[Text]:
    used = {s.kind for rows in (timeline.hosts, timeline.jobs) for r in rows for s in r.spans}
    lines = [Text()]
    for kind in MEANINGS:
        if kind not in used:
            continue
        glyph, colour = _style(kind, colours)
        entry = Text(f"  {glyph * 2}", style=colour).append(f" {MEANINGS[kind]}", style="dim")
        if len(lines[-1]) + len(entry) > width:
            lines.append(Text())
        lines[-1].append_text(entry)
    return lines


class RecordPrinter(AbstractContextManager["RecordPrinter"]):
    """Takes records as they come and shows them; the base shows plain lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._builder = TimelineBuilder()
        self._told = 0

    def show(self, records: Iterable[Record], now_s: float) -> None:
        """Show what is new; `now_s` is the stage's own time."""
        for record in records:
            self._builder.add(record)
        timeline = self._builder.timeline(now_s)
        for event in timeline.events[self._told :]:
            if event.main:
                self._out.write(plain_line(timeline, event) + "\n")
        self._told = len(timeline.events)
        self._out.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveWatcher(RecordPrinter):
    """Draws the growing timelines in a terminal, a few times a second."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._console = Console(file=unguarded(out), highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._drawn_s = 0.0
        self._now_s = 0.0

    def __enter__(self) -> LiveWatcher:
        self._live.__enter__()
        return self

    def show(self, records: Iterable[Record], now_s: float) -> None:
        """Take what is new, and draw unless that was done a moment ago."""
        for record in records:
            self._builder.add(record)
        self._now_s = now_s
        wall_s = time.monotonic()
        if wall_s - self._drawn_s >= _REFRESH_S:
            self._drawn_s = wall_s
            self._draw()

    def _draw(self) -> None:
        size = self._console.size
        colours = 0 if self._console.no_color else _COLOURS.get(self._console.color_system or "", 0)
        timeline = self._builder.timeline(self._now_s)
        self._live.update(picture(timeline, size.width, size.height - 1, colours), refresh=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        self._live.__exit__(kind, error, trace)


def watcher(out: TextIO | None = None) -> RecordPrinter:
    """Pictures where `out` (stdout) is a terminal that can draw, lines everywhere else."""
    out = out if out is not None else sys.stdout
    if out.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        return LiveWatcher(out)
    return RecordPrinter(out)
