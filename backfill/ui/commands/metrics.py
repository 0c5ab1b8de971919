"""`backfill metrics`: what the daemon counts, as Prometheus reads it; with `--out` for node_exporter."""

from __future__ import annotations

import argparse
from pathlib import Path

from backfill.ui.client import Asking, add_reading, guarded, print_json
from backfill.ui.outfile import OutputError, write_text
from backfill.ui.parser import BAD_DATA, OK, say


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="replace this file as a whole, such as one that node_exporter's textfile collector reads",
    )


def run_metrics(args: argparse.Namespace) -> int:
    """Ask and print, or write."""

    def work(client: Asking) -> int:
        if args.json:
            print_json(client.ask_exactly("metrics"))
            return OK
        from backfill.ui.web.exposition import exposition  # only this needs the library

        text, _ = exposition(client.ask_exactly("metrics")["families"])
        if args.out is None:
            print(text, end="")
        else:
            write_text(args.out, [text])
        return OK

    try:
        return guarded(work, args)
    except OutputError as error:
        say(str(error))
        return BAD_DATA
