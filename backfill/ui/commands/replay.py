"""`backfill replay`: a trace or a scenario in simulated time; a scenario with `--live` on a real lab."""

from __future__ import annotations

import argparse
from pathlib import Path

from backfill.sim import command as sim
from backfill.ui.commands import demo
from backfill.ui.parser import BAD_DATA, USAGE, Parser

_LIVE_HELP = "play a scenario on a real lab, as `backfill demo` does (see `replay --live --help`)"


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """The simulator's arguments; `--live` is only shown here."""
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    sim.add_replay_arguments(parser)


def run_replay(args: argparse.Namespace) -> int:
    """Replay."""
    status = sim.run_replay_command(args)
    return {sim.BAD_INPUT: BAD_DATA, sim.MISUSE: USAGE}.get(status, status)


_OF_TRACES = "goes with a trace; leave it out: a scenario names its hosts, jobs and costs itself"


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's arguments, but that no report is written unasked."""
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    demo.add_play_arguments(parser)
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with the timelines")
    if isinstance(parser, Parser):
        of_traces = argparse.ArgumentParser()
        sim.add_replay_arguments(of_traces)
        names = (name for action in of_traces._actions for name in action.option_strings)
        parser.elsewhere = dict.fromkeys(names, _OF_TRACES)


def run_scenario(args: argparse.Namespace) -> int:
    """Play it."""
    return demo.run_demo(args)
