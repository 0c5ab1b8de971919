"""`backfill replay SCENARIO`: in simulated time, with `--live` on a real lab, as the demo is."""

from __future__ import annotations

import argparse
from pathlib import Path

from backfill.ui import demo
from backfill.ui.replay_command import LIVE_HELP


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The demo's arguments, but that no report is written unasked."""
    parser.add_argument("--live", action="store_true", help=LIVE_HELP)
    demo.add_play_arguments(parser)
    parser.add_argument(
        "--report", type=Path, metavar="OUT.html", help="write a page with the timelines"
    )


def run(args: argparse.Namespace) -> int:
    """Play it."""
    return demo.run(args)
