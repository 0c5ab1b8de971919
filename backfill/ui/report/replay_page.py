"""One self-contained HTML page about a replay: what differs, all figures, and the timelines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from backfill.sim.replay.policy_replay import Setting
from backfill.ui.report.comparison import difference, worth_telling
from backfill.ui.report.figures import FIGURES, Figure, figures_by_cause
from backfill.ui.report.gantt import Look
from backfill.ui.report.replay_exports import spans_of
from backfill.ui.report.replay_text import Played, told_differences, told_repeats, told_time
from backfill.ui.report.style import escape

# After Okabe and Ito, as in the report of the demo, and a pattern of replay.css and timelines.js, so that
# colour is never the only difference. The order is that of timelines.js: jobs first.
_COLOURS = {
    Look.HIGH: ("#2b6cb0", ""),
    Look.LOW: ("#12805c", ""),
    Look.RUNNING: ("#9fd8c3", ""),
    Look.PAUSED: ("#e69f00", "rise"),
    Look.SUSPENDED: ("#f7dd9c", "dots"),
    Look.MOVING: ("#c477a8", "fall"),
}
_ORDER = tuple(_COLOURS)
_HERE = Path(__file__).parent
# Nothing may be fetched, and no script but our own may run.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_HELP = (
    "Times count from the first submission. On top of each host lie the high-priority jobs, below "
    "them its instances; what is narrower than a pixel is drawn paler. "
    "Wheel, + and -: zoom. Drag and arrows: move. Shift and wheel: up and down. Alt and wheel: "
    "height of a lane. Click: one job or instance, wherever it was; Escape: all again."
)


def page_chunks(setting: Setting, played: Sequence[Played]) -> Iterator[str]:
    """Yield the page. It needs nothing else: no font, no picture, no script from outside."""
    names = " and ".join(one.name for one in played)
    style = (_HERE / "replay.css").read_text(encoding="utf-8")
    yield (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(names)} | backfill replay</title><style>{style}</style></head>\n<body>"
    )
    yield _head(setting, played, names)
    yield _table(played)
    yield _charts(played)
    yield '<div id="tip"></div>\n<script type="application/json" id="data">'
    yield json.dumps(_data(setting, played), separators=(",", ":")).replace("<", "\\u003c")
    yield "</script>\n<script>\n"
    yield (_HERE / "timelines.js").read_text(encoding="utf-8")
    yield 'timelines(JSON.parse(document.getElementById("data").textContent));\n'
    yield "</script>\n<footer>Written by backfill replay. Same input and seed, same page.</footer>"
    yield "</body></html>\n"


def _head(setting: Setting, played: Sequence[Played], names: str) -> str:
    cluster, first = setting.cluster, played[0].summary
    low = 0 if setting.low is None else len(setting.low)
    seeds = len(played[0].summaries)
    about = (
        f"{first.high_jobs} high-priority jobs on {cluster.nodes} x {cluster.cpus} processors, "
        f"{low} low-priority jobs for instances, {told_time(first.window_s)} observed, "
        f"{setting.scheduler}, {setting.tie}, seed{'s' if seeds > 1 else ''} {setting.seed}"
        + (f" to {setting.seed + seeds - 1}" if seeds > 1 else "")
    )
    if told := told_repeats(setting, played):
        about += f"<br>{told}"
    body = f'<h1>Replay with {escape(names)}</h1><p class="soft">{about}</p>'
    if len(played) == 2:
        items = "".join(f"<li>{escape(text)}</li>" for text in told_differences(played))
        body += f'<h2>What differs</h2><ul class="said">{items}</ul>'
    return body


def _table(played: Sequence[Played]) -> str:
    heads = "".join(f"<th>{escape(one.name)}</th>" for one in played)
    two = len(played) == 2
    summaries = [summary for one in played for summary in one.summaries]
    rows = "".join(_row(figure, played) for figure in (*FIGURES, *figures_by_cause(summaries)))
    last = "<th>" + escape(f"{played[1].name} minus {played[0].name}") + "</th>" if two else ""
    return (
        f'<h2>All figures</h2><div class="scroll"><table><tr><th></th>{heads}{last}</tr>{rows}</table></div>'
    )


def _row(figure: Figure, played: Sequence[Played]) -> str:
    cells = "".join(f"<td>{escape(figure.shown(figure.mean(one.summaries)))}</td>" for one in played)
    if len(played) == 2:
        found = difference(figure, played[0].summaries, played[1].summaries)
        text = figure.change(found.mean, found.half if found.count > 1 else None) if found.count else "-"
        good = figure.better * found.mean
        first, second = (one.summaries for one in played)
        sure = found.sure if found.count > 1 else worth_telling(figure, first, second)
        if good and sure:  # said in words too: not everybody tells the colours apart
            css, word = ("good", "better") if good > 0 else ("bad", "worse")
            cells += f'<td class="{css}">{text}, {word}</td>'
        else:
            cells += f"<td>{text}</td>"
    return f"<tr><td>{escape(figure.title)}</td>{cells}</tr>"


def _charts(played: Sequence[Played]) -> str:
    legend = "".join(
        f'<span class="{pattern}" style="--c:{colour}">{look.value}</span>'
        for look, (colour, pattern) in _COLOURS.items()
    )
    charts = "".join(
        f'<h3>{escape(one.name)}</h3><div class="gantt"><canvas id="chart{i}" tabindex="0" '
        f'role="img" aria-label="Timelines of all hosts with {escape(one.name)}"></canvas></div>'
        for i, one in enumerate(played)
    )
    return (
        '<h2>Timelines</h2><div class="bar"><button id="all">all</button>'
        '<button id="in">closer</button><button id="out">farther</button>'
        '<input id="find" type="search" placeholder="a job or instance" '
        'aria-label="Find a job or an instance">'
        f'<span id="said" class="soft" aria-live="polite"></span></div>'
        f'<p class="soft help">{_HELP}</p><div class="legend">{legend}</div>{charts}'
    )


def _data(setting: Setting, played: Sequence[Played]) -> dict[str, object]:
    runs = [_run(setting, one) for one in played]
    window_s = max(one.summary.window_s for one in played)
    return {
        "length_s": round(window_s, 1),
        "looks": [[look.value, *_COLOURS[look]] for look in _ORDER],
        "runs": runs,
    }


def _run(setting: Setting, one: Played) -> dict[str, object]:
    """Return the lanes of every host, and five numbers per stretch: see timelines.js."""
    spans = spans_of(setting, one)
    depth = dict.fromkeys(setting.node_names, 1)
    for span in spans:
        depth[span.host] = max(depth[span.host], span.lane + 1)
    base, total = {}, 0
    for host, lanes in depth.items():
        base[host], total = total, total + lanes
    names: dict[str, int] = {}
    flat: list[int] = []
    # What is drawn later lies on top: instances first, then the jobs in them.
    look = {name: i for i, name in enumerate(_ORDER)}
    for span in sorted(spans, key=lambda s: (base[s.host] + s.lane, s.start_s, -look[s.look])):
        begin = round((span.start_s - setting.start_s) * 10)
        length = max(1, round((span.end_s - setting.start_s) * 10) - begin)
        number = names.setdefault(span.name, len(names))
        flat += (base[span.host] + span.lane, begin, length, look[span.look], number)
    return {
        "title": one.name,
        "rows": [[host, lanes] for host, lanes in depth.items()],
        "names": list(names),
        "spans": flat,
    }
