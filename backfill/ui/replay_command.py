"""`backfill replay`: a trace in simulated time; with `--live` it is `live_command` instead."""

from __future__ import annotations

import argparse

from backfill.sim.command import BAD_INPUT, MISUSE, add_replay_arguments, run_replay_command
from backfill.ui.codes import BAD_DATA, USAGE

LIVE_HELP = "play a scenario on a real lab, as `backfill demo` does (see `replay --live --help`)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The simulator's arguments; `--live` is only shown here."""
    parser.add_argument("--live", action="store_true", help=LIVE_HELP)
    add_replay_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Replay."""
    status = run_replay_command(args)
    return {BAD_INPUT: BAD_DATA, MISUSE: USAGE}.get(status, status)
