"""`backfill replay SCENARIO`: in simulated time, with `--live` on a real lab, as the demo is."""

from __future__ import annotations

import argparse

from backfill.ui.commands import BY_NAME
from backfill.ui.replay_command import LIVE_HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's arguments."""
    parser.add_argument("--live", action="store_true", help=LIVE_HELP)
    BY_NAME["demo"].add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Play it."""
    return BY_NAME["demo"].run(args)
