"""`backfill workload`: draws a trace from a workload model."""

from __future__ import annotations

import argparse

from backfill.sim.workload_command import add_workload_arguments, run_workload_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The simulator's arguments."""
    add_workload_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw and write."""
    return run_workload_command(args)
