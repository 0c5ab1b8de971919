"""`backfill replay SCENARIO`: in simulated time, with `--live` on a real lab, as the demo is."""

from __future__ import annotations

import argparse
from pathlib import Path

from backfill.sim.command import add_replay_arguments
from backfill.ui import demo
from backfill.ui.parser import Parser
from backfill.ui.replay_command import LIVE_HELP

_OF_TRACES = "goes with a trace; leave it out: a scenario names its hosts, jobs and costs itself"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's arguments, but that no report is written unasked."""
    parser.add_argument("--live", action="store_true", help=LIVE_HELP)
    demo.add_play_arguments(parser)
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with the timelines")
    if isinstance(parser, Parser):
        of_traces = argparse.ArgumentParser()
        add_replay_arguments(of_traces)
        names = (name for action in of_traces._actions for name in action.option_strings)
        parser.elsewhere = dict.fromkeys(names, _OF_TRACES)


def run(args: argparse.Namespace) -> int:
    """Play it."""
    return demo.run(args)
