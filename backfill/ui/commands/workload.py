"""`backfill workload`: draws a trace from a workload model."""

from __future__ import annotations

import argparse

from backfill.sim import workload_command as sim
from backfill.sim.command import BAD_INPUT
from backfill.ui.parser import BAD_DATA


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """The simulator's arguments."""
    sim.add_workload_arguments(parser)


def run_workload(args: argparse.Namespace) -> int:
    """Draw and write."""
    status = sim.run_workload_command(args)
    return BAD_DATA if status == BAD_INPUT else status
