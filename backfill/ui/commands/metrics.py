"""`backfill metrics`: what the daemon counts, as Prometheus reads it; with `--out` for node_exporter."""

from __future__ import annotations

import argparse
from pathlib import Path

from backfill.ui.client import Answer, AskError, Asking, add_place, guarded, print_json
from backfill.ui.outfile import write_text
from backfill.ui.parser import OK, UNAVAILABLE


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    either.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="replace this file as a whole, such as one that node_exporter's textfile collector reads",
    )
    add_place(parser)


def run_metrics(args: argparse.Namespace) -> int:
    """Ask and print, or write."""

    def work(client: Asking) -> int:
        if args.json:
            print_json(client.ask_exactly("metrics"))
            return OK
        try:
            families = client.ask_exactly("metrics")["families"]
        except AskError as error:
            # What was written before would look like a daemon at work for ever.
            busy = (error.answer or {}).get("kind") == "busy"  # then it is there, and soon asked again
            if args.out is not None and error.code == UNAVAILABLE and not busy:
                from backfill.engine.gauges import UP

                write_text(args.out, [_text([UP.gauges({(): 0.0})])])
            raise
        if args.out is None:
            print(_text(families), end="")
        else:
            write_text(args.out, [_text(families)])
        return OK

    return guarded(work, args)


def _text(families: list[Answer]) -> str:
    from backfill.ui.web.exposition import exposition  # only this needs the library

    return exposition(families)[0]
