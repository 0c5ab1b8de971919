"""One self-contained HTML file about a stretch of time; `python -m backfill.ui.report.page --help`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from backfill.drivers.store.sqlite import JournalReader
from backfill.ports.errors import DriverError
from backfill.ui.commands.version import release
from backfill.ui.outfile import OutputError, write_text
from backfill.ui.parser import BAD_DATA, OK, USAGE, Parser
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.payloads import figures, payloads_section, rivals_section
from backfill.ui.report.style import PAGE, PICTURE, VARIABLES, escape
from backfill.ui.report.svg import (
    Mark,
    boot_bars,
    giving_bars,
    ms,
    returning_bars,
    timeline_svg,
    waterfall_svg,
)
from backfill.ui.report.tables import events_table, evictions_table, own_table, starts_table
from backfill.ui.report.timeline import Chart, EvictionMark
from backfill.ui.terminal import local_time

_MOST_EVENTS = 2000
_MOST_WATERFALLS = 2


@dataclass(frozen=True, slots=True)
class Judgement:
    """A sentence with a yes or no; `details` say what exactly went wrong."""

    ok: bool
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PageHead:
    """The head of a page: what the journal does not tell."""

    title: str
    about: str = ""
    where: str = ""  # on what kind of cluster
    simulated: bool = False  # its dates mean nothing
    judgements: tuple[Judgement, ...] = ()
    rivals: tuple[tuple[str, ...], ...] = ()  # a table, its head first: other ways to play the same


def report_html(timeline: Chart, head: PageHead) -> str:
    """Make the whole page. It needs nothing else: no script, no font, no picture from outside."""
    body = "".join(
        (
            _header(timeline, head),
            _picture(timeline, head),
            payloads_section(timeline),
            rivals_section(head.rivals),
            _evictions(timeline),
            _own(timeline),
            _starts(timeline),
            _events(timeline),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(head.title)} | backfill</title>"
        f"<style>{VARIABLES}{PAGE}{PICTURE}</style></head>\n<body>{body}"
        f"<footer>Written by backfill {escape(release())} from the journal alone: the same report "
        "is made of a simulated run, a run on the lab and a daemon in production.</footer>"
        "</body></html>\n"
    )


def write_report(path: Path, timeline: Chart, head: PageHead) -> None:
    """Write the page. Raises OutputError."""
    write_text(path, [report_html(timeline, head)])


# --- parts ---------------------------------------------------------------------------------------


def _header(timeline: Chart, head: PageHead) -> str:
    when = f"{timeline.length_s:.0f} s long"
    if not head.simulated:
        when = f"{local_time(timeline.start_s)}, {when}"
    said = ", ".join(filter(None, (head.where, when)))
    judged = "".join(_judgement(j) for j in head.judgements)
    figures = "".join(
        f'<div class="figure"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for value, name in _figures(timeline)
    )
    return (
        f"<h1>{escape(head.title)}</h1>"
        + (f"<p>{escape(head.about)}</p>" if head.about else "")
        + f'<p class="soft">{escape(said)}</p>'
        + (f'<ul class="verdicts">{judged}</ul>' if judged else "")
        + (f'<div class="figures">{figures}</div>' if figures else "")
    )


def _judgement(judgement: Judgement) -> str:
    details = "".join(f"<li>{escape(text)}</li>" for text in judgement.details)
    inner = f"<ul>{details}</ul>" if details else ""
    css = "" if judgement.ok else ' class="no"'
    return f"<li{css}>{escape(judgement.text)}{inner}</li>"


def _figures(timeline: Chart) -> list[tuple[str, str]]:
    """Return the few numbers by which one remembers it."""
    found = []
    claims = [c.answered_s - c.at_s for c in timeline.claims if c.evicted and c.ok]
    if claims:
        found.append((ms(median(claims)), "until an occupied host was proven free"))
    moved = [e for e in timeline.evictions if e.back_s and e.back_host != e.host]
    if moved:
        to = ", ".join(sorted({e.back_host for e in moved}))
        many = "instance" if len(moved) == 1 else "instances"
        found.append((str(len(moved)), f"{many} went on at another host ({to})"))
    back = [e.back_s - e.returning_s for e in timeline.evictions if e.back_s]
    if back:
        found.append((ms(median(back)), "from the way back's begin until the work went on"))
    starts = [b.ready_s - b.decided_s for b in timeline.boots if b.ready_s]
    if starts:
        found.append((ms(median(starts)), "from the decision to a virtual node that takes jobs"))
    if timeline.jobs:
        ended = sum(1 for row in timeline.jobs if row.end == "completed")
        found.append((f"{ended} of {len(timeline.jobs)}", "jobs completed"))
    return [*found, *figures(timeline)]


def _picture(timeline: Chart, head: PageHead) -> str:
    return (
        "<h2>Who was where, and when</h2>"
        '<p class="soft">A host\'s first line is its own Slurm node, below are its guests. '
        "Point at a bar for its whole sentence.</p>"
        f'<div class="scroll">{timeline_svg(timeline, head.title)}</div>'
    )


def _evictions(timeline: Chart) -> str:
    if not timeline.evictions:
        return ""
    parts = [
        "<h2>Giving hosts back</h2>"
        '<p class="soft">Counted from the moment at which Slurm gave the host away. The job that '
        "wants it starts when the room is free; Slurm's picture follows.</p>"
        f'<div class="scroll">{evictions_table(timeline)}</div>'
    ]
    groups: dict[float, list[EvictionMark]] = {}
    for eviction in timeline.evictions:
        groups.setdefault(eviction.wanted_s, []).append(eviction)
    for wanted_s, group in list(groups.items())[:_MOST_WATERFALLS]:
        marks = [
            Mark("the job may start", c.answered_s)
            for c in timeline.claims
            if c.evicted and c.at_s == wanted_s and c.answered_s
        ]
        out = waterfall_svg("giving a host back, step by step", giving_bars(group), marks)
        back = waterfall_svg("bringing the work back, step by step", returning_bars(group))
        parts += [f'<div class="scroll">{svg}</div>' for svg in (out, back) if svg]
    return "".join(parts)


def _starts(timeline: Chart) -> str:
    if not timeline.boots:
        return ""
    parts = [
        "<h2>Starting instances</h2>"
        '<p class="soft">From the decision to a node that takes jobs; schedule is what a waiting '
        "job waited before that (Slurm tells it in whole seconds). Of the published systems only "
        "the totals are shown: their steps are cut differently and their hardware is not ours.</p>"
        f'<div class="scroll">{starts_table(timeline.boots)}</div>'
    ]
    done = [boot for boot in timeline.boots if boot.ready_s]
    for boot in done[:_MOST_WATERFALLS]:
        marks = [Mark(f"{boot.node} takes jobs", boot.ready_s)]
        svg = waterfall_svg(f"the start of {boot.node}, step by step", boot_bars(boot), marks)
        parts.append(f'<div class="scroll">{svg}</div>')
    return "".join(parts)


def _own(timeline: Chart) -> str:
    if not timeline.own:
        return ""
    return (
        "<h2>Machines of jobs</h2>"
        '<p class="soft">From the request to the job in its machines, each step until the last of '
        "them had done it: submission until their order began, transfer and creation of the instance, "
        "boot until Slurm had met it, propagation until it was proven and kept for the job, devices "
        "plugged in, and the job's own start.</p>"
        f'<div class="scroll">{own_table(timeline.own)}</div>'
    )


def _events(timeline: Chart) -> str:
    events = timeline.events
    main = [e for e in events if e.main][-_MOST_EVENTS:]
    more = events[-_MOST_EVENTS:]
    return (
        f"<h2>What happened</h2>{events_table(timeline, main)}"
        f"<details><summary>everything: {len(more)} lines</summary>"
        f"{events_table(timeline, more)}</details>"
    )


# --- by itself -----------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m backfill.ui.report.page`: a picture or a page of a scenario or of a journal."""
    parser = Parser(prog="python -m backfill.ui.report.page", description=main.__doc__)
    parser.add_argument("--journal", type=Path, metavar="FILE", help="a daemon's journal.db")
    parser.add_argument("--scenario", type=Path, metavar="FILE", help="play it in simulated time")
    parser.add_argument("--svg", type=Path, metavar="OUT", help="write the picture")
    parser.add_argument("--html", type=Path, metavar="OUT", help="write the page")
    args = parser.parse_args(argv)
    if (args.journal is None) == (args.scenario is None) or not (args.svg or args.html):
        parser.print_usage(sys.stderr)
        sys.stderr.write("give one of --journal and --scenario, and --svg or --html\n")
        return USAGE
    try:
        timeline, head = _of_journal(args.journal) if args.journal else _of_scenario(args.scenario)
        if args.svg:
            args.svg.write_text(timeline_svg(timeline, head.title, standalone=True))
        if args.html:
            write_report(args.html, timeline, head)
    except (DriverError, ValueError, OSError, OutputError) as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    return OK


def _of_journal(path: Path) -> tuple[Chart, PageHead]:
    reader = JournalReader(path)
    try:
        return timeline_of(reader.read()), PageHead("What the daemon did", where=f"Journal {path}")
    finally:
        reader.close()


def _of_scenario(path: Path) -> tuple[Chart, PageHead]:
    # Only this needs the simulator.
    from backfill.config.problems import ConfigError
    from backfill.sim.scenarios.player import play
    from backfill.sim.scenarios.reader import load_scenario
    from backfill.sim.scenarios.stage import SimulatedStage

    try:
        scenario = load_scenario(path)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    outcome = play(scenario, SimulatedStage(scenario))
    head = PageHead(
        scenario.name.capitalize(),
        scenario.about,
        "In simulated time",
        True,
        judgements((v.ok, v.text, v.details) for v in outcome.verdicts),
    )
    return timeline_of(outcome.records), head


def judgements(found: Iterable[tuple[bool, str, tuple[str, ...]]]) -> tuple[Judgement, ...]:
    """Verdicts of a scenario as the report shows them."""
    return tuple(Judgement(ok, text, details) for ok, text, details in found)


if __name__ == "__main__":
    sys.exit(main())
