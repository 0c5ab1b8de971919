"""Timelines and waterfalls as SVG: who was where when, and how long each step took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from backfill.ui.report.style import DEFINITIONS, PATTERNS, PICTURE, SOLID, VARIABLES, escape
from backfill.ui.report.timeline import MEANINGS, Boot, Chart, EvictionMark, Row, Step, Stretch, StretchKind
from backfill.ui.terminal import age

WIDTH = 1200.0
_LEFT, _RIGHT, _TOP = 118.0, 16.0, 44.0
_LANE, _GUEST, _GAP = 20.0, 17.0, 3.0
_LETTER = 6.3  # width of a letter in a label, generously
_MOST_ROWS = 200
_TICKS_S = (
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21600,
    86400,
)
_SHORT = {
    StretchKind.BOOTING: "booting",
    StretchKind.IDLE: "idle",
    StretchKind.WORKING: "at work",
    StretchKind.PAUSED: "stands still",
    StretchKind.ON_DISK: "on disk",
    StretchKind.MOVING: "moving",
    StretchKind.RETURNING: "returning",
    StretchKind.DRAINING: "leaving",
    StretchKind.FAILED: "failed",
    StretchKind.GIVEN_UP: "given up",
}


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Time to x. `left` and `right` are the edges of the plot."""

    start_s: float
    end_s: float
    left: float = _LEFT
    right: float = WIDTH - _RIGHT

    def x(self, at_s: float) -> float:
        """Return the place of a moment on the axis."""
        share = (at_s - self.start_s) / max(self.end_s - self.start_s, 1e-9)
        return self.left + share * (self.right - self.left)

    def ticks(self, most: int = 14) -> Iterator[float]:
        """Round moments after the beginning, at most `most` of them."""
        length_s = self.end_s - self.start_s
        step_s = next((t for t in _TICKS_S if length_s / t <= most), length_s)
        count = int(length_s / step_s + 1e-6)
        yield from (self.start_s + i * step_s for i in range(count + 1))


def number(value: float) -> str:
    """Write a coordinate, short."""
    return f"{value:.1f}".rstrip("0").rstrip(".")


def timeline_svg(timeline: Chart, title: str, *, standalone: bool = False) -> str:
    """One SVG element; `standalone` ones carry their styles and stand on a ground of their own."""
    drawing = _Drawing(timeline)
    drawing.axis()
    drawing.section("Hosts", timeline.hosts)
    drawing.section("Instances", timeline.instances)
    drawing.section("Jobs", timeline.jobs)
    drawing.claims()
    drawing.moves()
    drawing.legend()
    height = drawing.y + 10
    style = f"<style>{VARIABLES}{PICTURE}</style>" if standalone else ""
    ground = f'<rect class="ground" width="{number(WIDTH)}" height="{number(height)}" rx="10"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" '
        f'viewBox="0 0 {number(WIDTH)} {number(height)}"><title>{escape(title)}</title>'
        f"{style}{DEFINITIONS}{ground if standalone else ''}"
        f"{''.join(drawing.below)}{''.join(drawing.parts)}</svg>\n"
    )


@dataclass
class _Drawing:
    timeline: Chart
    parts: list[str] = field(default_factory=list)
    below: list[str] = field(default_factory=list)  # drawn first: cards and grid
    y: float = _TOP
    scale: TimeAxis = field(init=False)
    _lanes: dict[tuple[str, str], float] = field(default_factory=dict)  # (host, instance) -> y

    def __post_init__(self) -> None:
        self.scale = TimeAxis(self.timeline.start_s, self.timeline.end_s)

    def axis(self) -> None:
        """Draw the times above; their lines are drawn when the height is known."""
        for at_s in self.scale.ticks():
            text = _tick(at_s - self.timeline.start_s)
            self._text(self.scale.x(at_s), 18, text, "soft small", anchor="middle")

    def section(self, title: str, rows: tuple[Row, ...]) -> None:
        """Draw a heading and a row for each; what is too much is counted."""
        if not rows:
            return
        self.y += 8
        self._text(10, self.y + 11, title, "head")
        self.y += 20
        for row in rows[:_MOST_ROWS]:
            self._row(row, hosts=title == "Hosts")
        if len(rows) > _MOST_ROWS:
            self._text(_LEFT, self.y + 12, f"and {len(rows) - _MOST_ROWS} more", "soft")
            self.y += 18

    def _row(self, row: Row, *, hosts: bool) -> None:
        heights = [_LANE] + [_GUEST] * (row.lanes - 1)
        tall = sum(heights) + _GAP * (row.lanes - 1)
        pad = 5.0 if hosts else 1.5
        if hosts:
            self.below.append(
                f'<rect class="card" x="4" y="{number(self.y)}" width="{number(WIDTH - 8)}" '
                f'height="{number(tall + 2 * pad)}" rx="7"/>'
            )
        name = row.label or row.name
        self._text(14, self.y + pad + 14, name, "" if len(name) * 6.6 < _LEFT - 14 else "small")
        tops = [self.y + pad + sum(heights[:i]) + _GAP * i for i in range(row.lanes)]
        # Evictions are too short for their true width: they go on top of what follows.
        for span in sorted(row.spans, key=lambda span: span.kind is StretchKind.EVICTING):
            self._span(row, span, tops[span.lane], heights[span.lane], hosts)
            if hosts and span.lane:
                for host in span.hosts:
                    self._lanes[host, span.label] = tops[span.lane] + heights[span.lane] / 2
        self.y += tall + 2 * pad + (4 if hosts else 0)

    def _span(self, row: Row, span: Stretch, y: float, height: float, hosts: bool) -> None:
        x, end = self.scale.x(span.start_s), self.scale.x(span.end_s)
        width = max(end - x, 3.0 if span.kind is StretchKind.EVICTING else 0.75)
        if span.kind is StretchKind.WAITING:
            y, height = y + height / 2 - 1.5, 3.0
        box = (
            f'x="{number(x)}" y="{number(y)}" width="{number(width)}" '
            f'height="{number(height)}" rx="{2 if width > 6 else 0}"'
        )
        told = self.timeline.named(f"{span.label or row.label or row.name}: {span.text}")
        hint = f"{told} ({MEANINGS[span.kind]}, {age(span.end_s - span.start_s)})"
        self.parts.append(f'<rect class="k-{span.kind}" {box}><title>{escape(hint)}</title></rect>')
        if span.kind in PATTERNS and width > 4:
            pattern = PATTERNS[span.kind]
            self.parts.append(f'<rect class="pattern" fill="url(#{pattern})" {box}/>')
        self._label(_label(row, span, hosts), span, (x, y, width, height))

    def _label(self, label: str, span: Stretch, box: tuple[float, float, float, float]) -> None:
        x, y, width, height = box
        if label and span.kind is not StretchKind.WAITING and width >= len(label) * _LETTER + 10:
            css = "on-solid" if span.kind in SOLID else "on-light"
            self._text(x + 6, y + height / 2 + 4, label, css)

    def claims(self) -> None:
        """Draw a line through everything where a job pushed instances aside."""
        free = float("-inf")
        for claim in self.timeline.claims:
            if not claim.evicted:
                continue
            x = self.scale.x(claim.at_s)
            name = self.timeline.names.get(claim.job) or f"job {claim.job}"
            took = f": room free after {ms(claim.answered_s - claim.at_s)}" if claim.ok else ""
            text = f"{name} gets {', '.join(claim.hosts)}{took}"
            self.parts.append(_line("mark", x, _TOP - 8, x, self.y))
            if x > free:
                at_end = x + len(text) * _LETTER > WIDTH
                anchor = "end" if at_end else "start"
                self._text(x + (-5 if at_end else 5), _TOP - 6, text, "marked small", anchor)
                free = x + len(text) * _LETTER + 10

    def moves(self) -> None:
        """Draw an arrow from host to host for each move."""
        for eviction in self.timeline.evictions:
            start = self._lanes.get((eviction.host, eviction.node))
            end = self._lanes.get((eviction.back_host, eviction.node))
            if not eviction.moving_s or eviction.host == eviction.back_host or not eviction.back_s:
                continue
            if start is None or end is None:
                continue
            x = self.scale.x(eviction.returning_s)
            bend = x + 26 if x + 40 < WIDTH else x - 26
            self.parts.append(
                f'<path class="way" marker-end="url(#tip)" d="M{number(x)} {number(start)} '
                f"C{number(bend)} {number(start)} {number(x - 26)} {number(end)} "
                f'{number(x - 1)} {number(end)}"/>'
            )

    def legend(self) -> None:
        """Draw the kinds that occur, and the grid, whose height is known now."""
        for at_s in self.scale.ticks():
            x = self.scale.x(at_s)
            self.below.append(_line("grid", x, 26, x, self.y + 4))
        rows = (*self.timeline.hosts, *self.timeline.instances, *self.timeline.jobs)
        used = {span.kind for row in rows for span in row.spans}
        x = 10.0
        self.y += 22
        for kind in (k for k in MEANINGS if k in used):
            wide = len(MEANINGS[kind]) * _LETTER + 38
            if x + wide > WIDTH:
                x, self.y = 10.0, self.y + 20
            top, tall = (5.5, 3) if kind is StretchKind.WAITING else (10, 12)  # as thin as it is above
            box = f'x="{number(x)}" y="{number(self.y - top)}" width="16" height="{tall}" rx="2"'
            self.parts.append(f'<rect class="k-{kind}" {box}/>')
            if kind in PATTERNS:
                self.parts.append(f'<rect fill="url(#{PATTERNS[kind]})" {box}/>')
            self._text(x + 22, self.y, MEANINGS[kind], "soft small")
            x += wide

    def _text(self, x: float, y: float, text: str, css: str, anchor: str = "start") -> None:
        at = "" if anchor == "start" else f' text-anchor="{anchor}"'
        named = f' class="{css}"' if css else ""
        self.parts.append(f'<text{named} x="{number(x)}" y="{number(y)}"{at}>{escape(text)}</text>')


def ms(seconds: float) -> str:
    """Milliseconds below a second, seconds above it."""
    if seconds < 0.0095:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _label(row: Row, span: Stretch, hosts: bool) -> str:
    if hosts or span.kind is StretchKind.METAL:
        return span.label
    if row.label and span.kind is StretchKind.WORKING:
        return span.label  # a job: the node on which it works
    return _SHORT.get(span.kind, "")


def _tick(seconds: float) -> str:
    if seconds == 0 or seconds >= 1:
        return f"{seconds:g} s" if seconds < 120 else age(seconds)
    return f"{seconds * 1000:g} ms"


def _line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    start, end = f'x1="{number(x1)}" y1="{number(y1)}"', f'x2="{number(x2)}" y2="{number(y2)}"'
    return f'<line class="{css}" {start} {end}/>'


_BARS_LEFT, _BARS_RIGHT = 190.0, 90.0
_ROW = 20.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One step. `css` says what kind it is: step, guest, way-back, failed."""

    label: str
    start_s: float
    end_s: float
    css: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that was reached, written at its line."""

    label: str
    at_s: float


def waterfall_svg(title: str, bars: Sequence[Bar], marks: Sequence[Mark] = ()) -> str:
    """One SVG element from the first bar's start to the last end; empty without bars."""
    if not bars:
        return ""
    start_s = min(bar.start_s for bar in bars)
    end_s = max([*(bar.end_s for bar in bars), *(mark.at_s for mark in marks)])
    scale = TimeAxis(start_s, max(end_s, start_s + 1e-4), _BARS_LEFT, WIDTH - _BARS_RIGHT)
    top = 30.0 + (16.0 if marks else 0.0)
    height = top + _ROW * len(bars) + 8
    below, parts = [], []
    for at_s in scale.ticks(10):
        x = number(scale.x(at_s))
        below.append(f'<line class="grid" x1="{x}" y1="20" x2="{x}" y2="{number(height - 4)}"/>')
        parts.append(_text(scale.x(at_s), 13, _since(at_s - start_s), "soft small", "middle"))
    for mark in marks:
        x = number(scale.x(mark.at_s))
        parts.append(f'<line class="mark" x1="{x}" y1="24" x2="{x}" y2="{number(height - 4)}"/>')
        at_end = scale.x(mark.at_s) > WIDTH * 0.8
        shift, anchor = (-5, "end") if at_end else (5, "start")
        parts.append(_text(scale.x(mark.at_s) + shift, 34, mark.label, "marked small", anchor))
    for index, bar in enumerate(bars):
        parts += _bar(bar, scale, top + index * _ROW)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="picture" role="img" '
        f'viewBox="0 0 {number(WIDTH)} {number(height)}"><title>{escape(title)}</title>'
        f"{''.join(below)}{''.join(parts)}</svg>"
    )


def _bar(bar: Bar, scale: TimeAxis, y: float) -> list[str]:
    x = scale.x(bar.start_s)
    width = max(1.5, scale.x(bar.end_s) - x)
    took = ms(max(0.0, bar.end_s - bar.start_s))
    return [
        _text(_BARS_LEFT - 10, y + 13, bar.label, "small", "end"),
        f'<rect class="step {bar.css}" x="{number(x)}" y="{number(y + 2)}" '
        f'width="{number(width)}" height="{number(_ROW - 5)}" rx="2">'
        f"<title>{escape(f'{bar.label}: {took}')}</title></rect>",
        _text(x + width + 6, y + 13, took, "soft small", "start"),
    ]


def boot_bars(boot: Boot) -> list[Bar]:
    """Return bars for the calls of a start, and for what the guest did in between."""
    bars = [_of_step(step) for step in boot.steps]
    create = boot.step("create instance")
    if create is None or not boot.registered_s:
        return bars
    began_s, told = create.end_s, []
    last_s = 0.0
    for name, uptime_s in boot.marks:
        end_s = min(boot.registered_s, began_s + uptime_s)
        told.append(Bar(f"guest: {name}", began_s + last_s, end_s, "guest"))
        last_s = uptime_s
    rest_s = min(boot.registered_s, began_s + last_s)
    rest = "register" if told else "boot, identity, register"
    told.append(Bar(f"guest: {rest}", rest_s, boot.registered_s, "guest"))
    return sorted([*bars, *told], key=lambda bar: bar.start_s)


def giving_bars(evictions: Sequence[EvictionMark]) -> list[Bar]:
    """Return the steps from the moment the host was wanted until Slurm's picture agreed."""
    bars = [
        _of_step(step, f"{eviction.node}: ")
        for eviction in evictions
        for step in eviction.steps
        if not eviction.parked_s or step.start_s < eviction.parked_s
    ]
    return sorted(bars, key=lambda bar: bar.start_s)


def returning_bars(evictions: Sequence[EvictionMark]) -> list[Bar]:
    """Return the steps that brought the work back, the move included."""
    bars = [
        _of_step(step, f"{eviction.node}: ", "way-back")
        for eviction in evictions
        for step in eviction.steps
        if eviction.parked_s and step.start_s >= eviction.parked_s
    ]
    return sorted(bars, key=lambda bar: bar.start_s)


def _of_step(step: Step, before: str = "", css: str = "") -> Bar:
    label = before + step.name.replace(" instance", "")
    return Bar(label, step.start_s, step.end_s or step.start_s, "failed" if step.problem else css)


def _since(seconds: float) -> str:
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds > 1e-9 else "0"
    return f"{seconds:g} s"


def _text(x: float, y: float, text: str, css: str, anchor: str) -> str:
    at = f'x="{number(x)}" y="{number(y)}" text-anchor="{anchor}"'
    return f'<text class="{css}" {at}>{escape(text)}</text>'
