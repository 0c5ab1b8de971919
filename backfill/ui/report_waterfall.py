"""Step after step on one axis: how long each part of a start or an eviction took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backfill.core.visible import escape
from backfill.ui.report_svg import Scale, ms, number
from backfill.ui.timeline_data import Boot, Eviction, Step

WIDTH = 1200.0
_LEFT, _RIGHT = 190.0, 90.0
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
    scale = Scale(start_s, max(end_s, start_s + 1e-4), _LEFT, WIDTH - _RIGHT)
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


def _bar(bar: Bar, scale: Scale, y: float) -> list[str]:
    x = scale.x(bar.start_s)
    width = max(1.5, scale.x(bar.end_s) - x)
    took = ms(max(0.0, bar.end_s - bar.start_s))
    return [
        _text(_LEFT - 10, y + 13, bar.label, "small", "end"),
        f'<rect class="step {bar.css}" x="{number(x)}" y="{number(y + 2)}" '
        f'width="{number(width)}" height="{number(_ROW - 5)}" rx="2">'
        f"<title>{escape(f'{bar.label}: {took}')}</title></rect>",
        _text(x + width + 6, y + 13, took, "soft small", "start"),
    ]


def boot_bars(boot: Boot) -> list[Bar]:
    """The calls of a start, and what the guest did in between."""
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


def giving_bars(evictions: Sequence[Eviction]) -> list[Bar]:
    """What was done from the moment the host was wanted until Slurm's picture agreed."""
    bars = [
        _of_step(step, f"{eviction.node}: ")
        for eviction in evictions
        for step in eviction.steps
        if not eviction.parked_s or step.start_s < eviction.parked_s
    ]
    return sorted(bars, key=lambda bar: bar.start_s)


def returning_bars(evictions: Sequence[Eviction]) -> list[Bar]:
    """What was done to bring the work back, the move included."""
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
