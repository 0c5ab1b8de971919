"""`backfill events`: what was seen and done, in order of time; `--follow` goes on."""

from __future__ import annotations

import argparse
import time
from typing import Any

from backfill.ui.client import AskError, Client, add_socket, guarded, print_json
from backfill.ui.codes import OK, UNAVAILABLE
from backfill.ui.parser import say
from backfill.ui.terminal import emphasis, local_time

_LOOK_EVERY_S = 0.5
_PAGE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--follow", "-f", action="store_true", help="go on until Ctrl-C, past the daemon's restart"
    )
    parser.add_argument("--after", type=_number, metavar="ID", help="only events after this one")
    parser.add_argument(
        "--limit", "-n", type=_positive, default=50, metavar="N", help="at most so many (50)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    add_socket(parser)


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 0")
    return int(text)


def _positive(text: str) -> int:
    number = _number(text)
    if number == 0:
        raise argparse.ArgumentTypeError("0 events would be none; give at least 1")
    return number


def run(args: argparse.Namespace) -> int:
    """Ask and print; with `--follow` until interrupted."""

    def work(client: Client) -> int:
        found = client.ask("events", after=args.after or 0, limit=args.limit)["events"]
        _print(found, args.json)
        if not found and not args.follow and not args.json:
            print("no events" + (f" after {args.after}" if args.after else " yet"))
        if args.follow:
            _follow(client, found[-1]["id"] if found else args.after or 0, args.json)
        return OK

    return guarded(work, args)


def _follow(client: Client, last_id: int, as_json: bool) -> None:
    """Print what comes. The journal outlives the daemon, so its numbers go on after a restart."""
    lost = False
    while True:
        # The daemon answers questions and sends nothing unasked, so there is nothing to wait on.
        time.sleep(_LOOK_EVERY_S)
        try:
            found = client.ask("events", after=last_id, limit=_PAGE)["events"]
        except AskError as error:
            if error.code != UNAVAILABLE:
                raise
            if not lost:
                say("the daemon is gone; waiting until it is back")
            lost = True
            continue
        lost = False
        _print(found, as_json)
        last_id = found[-1]["id"] if found else last_id


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    for event in found:
        if as_json:
            print_json(event)
        else:
            number = emphasis(f"{event['id']:>6}", "2")
            print(f"{number}  {local_time(event['at_s'])}  {event['text'].strip()}")
    if found:
        print(end="", flush=True)
