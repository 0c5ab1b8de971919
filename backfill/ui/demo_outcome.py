"""What is told and left once a scenario was played: ticks and crosses, JSON, JUnit, a page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from backfill.sim.junit import junit_lines
from backfill.sim.outfile import write_text
from backfill.sim.scenarios.paper import against_the_paper, paper_rows
from backfill.sim.scenarios.player import Outcome
from backfill.sim.scenarios.scenario_fit import Play, beside_one_another
from backfill.ui.codes import NO, OK
from backfill.ui.report import Head, judgements, write_report
from backfill.ui.terminal import aligned, emphasis
from backfill.ui.timeline_builder import timeline_of


def conclude(args: argparse.Namespace, plays: Sequence[Play], *, live: bool) -> int:
    """Print and write what came of it; NO if an expectation failed. Raises OutputError.

    `plays`: one, or one for each of two policies. The page is about the first.
    """
    if args.junit is not None:
        write_text(args.junit, junit_lines([(play.name, play.outcome) for play in plays]))
    if args.report is not None:
        _page(args.report, plays[0].outcome, live=live)
    if args.json:
        print(json.dumps(_document(plays, live=live)))
    else:
        for line in _lines(plays):
            print(line)
        if args.report is not None:
            print(f"\nThe report with the picture: {args.report}")
        _beside_the_paper(plays)
    return OK if all(play.outcome.ok for play in plays) else NO


def _lines(plays: Sequence[Play]) -> Iterator[str]:
    """A tick or a cross for each expectation; of two policies also their measures."""
    for play in plays:
        yield ""
        if len(plays) > 1:
            yield emphasis(play.name)
        for verdict in play.outcome.verdicts:
            mark = emphasis("✓", "32") if verdict.ok else emphasis("✗", "31;1")
            yield f" {mark} {verdict.text}"
            yield from (f"     {detail}" for detail in verdict.details)
    if len(plays) > 1:
        yield ""
        yield from aligned(beside_one_another(plays))


def _beside_the_paper(plays: Sequence[Play]) -> None:
    """A scenario after a paper: its figures beside ours, always in simulated time."""
    lines = list(against_the_paper(plays[0].outcome.scenario)) if len(plays) == 1 else []
    if lines:
        print("\nBeside the paper, in simulated time (docs/papers.md says what differs):\n")
        print("\n".join(lines))


def _page(path: Path, outcome: Outcome, *, live: bool) -> None:
    scenario = outcome.scenario
    head = Head(
        scenario.name.capitalize(),
        scenario.about,
        "On real parts: slurmctld, slurmd, libvirt, QEMU" if live else "In simulated time",
        not live,
        judgements((v.ok, v.text, v.details) for v in outcome.verdicts),
    )
    write_report(path, timeline_of(outcome.records), head)


def _document(plays: Sequence[Play], *, live: bool) -> dict[str, object]:
    scenario = plays[0].outcome.scenario
    names = ("measure", "variant", "paper", "ours")
    rows = paper_rows(scenario) if len(plays) == 1 else []
    return {
        "scenario": scenario.name,
        "simulated": not live,
        "ok": all(play.outcome.ok for play in plays),
        "plays": {play.name: _play(play) for play in plays},
        "paper": [dict(zip(names, row, strict=True)) for row in rows],
    }


def _play(play: Play) -> dict[str, object]:
    outcome = play.outcome
    return {
        "ok": outcome.ok,
        "took_s": round(outcome.end_s - outcome.start_s, 3),
        "measures": dict(play.measures),
        "expectations": [
            {"title": v.title, "ok": v.ok, "text": v.text, "details": list(v.details)}
            for v in outcome.verdicts
        ],
    }
