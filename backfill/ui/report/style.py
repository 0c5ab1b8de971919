"""Colours and type of reports and pictures: light and dark, for people with any colour vision."""

from __future__ import annotations

import html

from backfill.core.model.visible import visible
from backfill.ui.report.timeline import StretchKind

# After Okabe and Ito. Text on the two solid ones is white, on all others dark.
COLOURS: dict[StretchKind, str] = {
    StretchKind.METAL: "#2b6cb0",
    StretchKind.WORKING: "#12805c",
    StretchKind.IDLE: "#9fd8c3",
    StretchKind.BOOTING: "#93cdf1",
    StretchKind.EVICTING: "#d55e00",
    StretchKind.PAUSED: "#f2b632",
    StretchKind.ON_DISK: "#f7dd9c",
    StretchKind.MOVING: "#c477a8",
    StretchKind.RETURNING: "#e3b7d1",
    StretchKind.DRAINING: "#b4bcc5",
    StretchKind.REMOVING: "#939ca6",
    StretchKind.WAITING: "#98a1ab",
    StretchKind.FAILED: "#7f2d1d",
    StretchKind.GIVEN_UP: "#4a1a11",
}
SOLID = frozenset(
    {StretchKind.METAL, StretchKind.WORKING, StretchKind.FAILED, StretchKind.GIVEN_UP, StretchKind.EVICTING}
)
# Kinds that carry a pattern as well, so that colour is never the only difference.
PATTERNS: dict[StretchKind, str] = {
    StretchKind.PAUSED: "hatch",
    StretchKind.ON_DISK: "dots",
    StretchKind.BOOTING: "rise",
    StretchKind.MOVING: "hatch-back",
}

_LIGHT = """
  --ink: #1b2430; --soft: #5a6673; --line: #dfe4e9; --ground: #ffffff; --card: #f5f7f9;
  --good: #0f7a55; --bad: #b8400a; --accent: #b8400a;
"""
_DARK = """
  --ink: #e8edf2; --soft: #9fabb8; --line: #313b46; --ground: #12171d; --card: #1a2129;
  --good: #4fd0a0; --bad: #ff9257; --accent: #ff9257;
"""

VARIABLES = (
    f":root {{{_LIGHT}}}\n"
    f"@media (prefers-color-scheme: dark) {{ :root {{{_DARK}}} }}\n"
    # Whoever prints it saves ink.
    f"@media print {{ :root {{{_LIGHT}}} }}\n"
)

PICTURE = (
    """
.picture text { font: 12px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
  fill: var(--ink); }
.picture .soft { fill: var(--soft); }
.picture .small { font-size: 11px; }
.picture .head { font-weight: 650; font-size: 13px; }
.picture .card { fill: var(--card); }
.picture .ground { fill: var(--ground); }
.picture .grid { stroke: var(--line); stroke-width: 1; }
.picture .mark { stroke: var(--accent); stroke-width: 1.25; stroke-dasharray: 4 3; }
.picture .marked { fill: var(--accent); font-weight: 600; }
.picture .way { fill: none; stroke: var(--ink); stroke-width: 1.5; opacity: .65; }
.picture .tip { fill: var(--ink); opacity: .75; }
.picture .on-solid { fill: #ffffff; font-size: 11px; }
.picture .on-light { fill: #1b2430; font-size: 11px; }
.picture .pattern { pointer-events: none; }
.picture .step { fill: #2b6cb0; }
.picture .step.way-back { fill: #12805c; }
.picture .step.guest { fill: #93cdf1; }
.picture .step.failed { fill: #d55e00; }
"""
    + "\n".join(f".k-{kind} {{ fill: {colour}; }}" for kind, colour in COLOURS.items())
    + "\n"
)

# Lines of the patterns are dark and faint on whatever colour is below them.
DEFINITIONS = """<defs>
<pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect width="2.2" height="7" fill="#1b2430" opacity=".2"/></pattern>
<pattern id="hatch-back" width="7" height="7" patternUnits="userSpaceOnUse"
 patternTransform="rotate(-45)">
<rect width="2.2" height="7" fill="#1b2430" opacity=".18"/></pattern>
<pattern id="dots" width="6" height="6" patternUnits="userSpaceOnUse">
<circle cx="2" cy="2" r="1.2" fill="#1b2430" opacity=".45"/></pattern>
<pattern id="rise" width="5" height="5" patternUnits="userSpaceOnUse">
<rect width="1.4" height="5" fill="#1b2430" opacity=".16"/></pattern>
<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
<path d="M0 0 L8 4 L0 8 z" class="tip"/></marker>
</defs>"""

PAGE = """
* { box-sizing: border-box; }
html { color-scheme: light dark; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 1280px; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .25rem; letter-spacing: -.01em; }
h2 { font-size: 1.2rem; margin: 2.75rem 0 .4rem; }
p { margin: .25rem 0 .75rem; max-width: 75ch; }
.soft { color: var(--soft); }
.verdicts { list-style: none; padding: 0; margin: 1.25rem 0; display: grid; gap: .45rem; }
.verdicts > li { background: var(--card); border-radius: 8px; padding: .55rem .9rem .55rem 2.6rem;
  position: relative; border-left: 4px solid var(--good); }
.verdicts > li::before { content: "\\2713"; position: absolute; left: .95rem; color: var(--good);
  font-weight: 800; }
.verdicts > li.no { border-color: var(--bad); }
.verdicts > li.no::before { content: "\\2717"; color: var(--bad); }
.verdicts ul { margin: .3rem 0 0; padding-left: 1.1rem; color: var(--soft); }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: .8rem;
  margin: 1.25rem 0 0; }
.figure { background: var(--card); border-radius: 10px; padding: .8rem 1rem; }
.figure b { display: block; font-size: 1.6rem; line-height: 1.25; font-weight: 700;
  font-variant-numeric: tabular-nums; }
.figure span { color: var(--soft); font-size: .86rem; line-height: 1.3; display: block; }
.scroll { overflow-x: auto; margin: .6rem 0; }
.scroll > svg { display: block; min-width: 860px; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
th:first-child, td:first-child, td.left, th.left { text-align: left; }
td.merged { text-align: center; color: var(--soft); }
td.total { font-weight: 700; }
tr.peer td { color: var(--soft); }
tr.summary td { background: var(--card); font-weight: 600; }
caption { text-align: left; color: var(--soft); font-size: .86rem; padding: .3rem 0; }
details { margin-top: .6rem; }
summary { cursor: pointer; color: var(--soft); }
.events { font-size: .88rem; border-collapse: collapse; }
.events td { white-space: normal; border: 0; padding: .12rem .7rem .12rem 0; text-align: left; }
.events td:first-child { text-align: right; color: var(--soft); white-space: nowrap;
  font-variant-numeric: tabular-nums; }
footer { margin-top: 3rem; color: var(--soft); font-size: .86rem; }
code { font: .92em ui-monospace, "DejaVu Sans Mono", monospace; }
@media print {
  body { padding: 0; max-width: none; font-size: 11px; }
  .scroll { overflow: visible; break-inside: avoid; }
  .scroll > svg { min-width: 0; }
  th, td { white-space: normal; padding: .25rem .4rem; }
  h2 { margin-top: 1.5rem; break-after: avoid; }
  h2 + p { break-after: avoid; }
  tr { break-inside: avoid; }
}
"""


def escape(text: str) -> str:
    """Return `visible` text for a page or a picture: XML cannot even hold most control characters."""
    return html.escape(visible(text))
