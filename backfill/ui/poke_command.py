"""`backfill poke`: make the daemon read everything now instead of at its next turn."""

from __future__ import annotations

import argparse

from backfill.ui.client import Client, add_socket, guarded
from backfill.ui.codes import OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_socket(parser)


def run(args: argparse.Namespace) -> int:
    """Poke."""

    def work(client: Client) -> int:
        client.ask("poke")
        print("Slurm and all hosts are being read now")
        return OK

    return guarded(work, args)
