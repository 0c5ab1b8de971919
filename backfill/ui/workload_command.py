"""`backfill workload`: draws a trace from a workload model."""

from __future__ import annotations

import argparse

from backfill.sim.command import BAD_INPUT
from backfill.sim.workload_command import add_workload_arguments, run_workload_command
from backfill.ui.codes import BAD_DATA


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The simulator's arguments."""
    add_workload_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw and write."""
    status = run_workload_command(args)
    return BAD_DATA if status == BAD_INPUT else status
