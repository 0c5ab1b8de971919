"""`backfill reclaim`: give room in a burst host back for good, or take it again."""

from __future__ import annotations

import argparse

from backfill.ui import wording
from backfill.ui.client import AskError, Client, add_socket, guarded, print_json
from backfill.ui.codes import NO, OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("host", metavar="HOST", help="a burst host, such as an OpenStack project")
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="so many may stay (0)")
    parser.add_argument("--undo", action="store_true", help="any number may stay again")
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who ask later")
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    add_socket(parser)


def run(args: argparse.Namespace) -> int:
    """Tell the daemon; what goes, goes drained."""

    def work(client: Client) -> int:
        hosts = {h["name"] for h in client.ask("hosts")["hosts"]}
        if args.host not in hosts:
            raise AskError(wording.unknown("host", args.host, sorted(hosts)), NO)
        answer = client.ask(
            "reclaim", subject=args.host, keep=args.keep, on=not args.undo, reason=args.reason
        )
        if args.json:
            print_json(answer)
        elif args.undo:
            print(f"{args.host} may be filled again")
        else:
            print(
                f"{args.host}: {args.keep} may stay, the others go when their jobs have ended "
                f"or scale.reclaim_within_s is over; undo with --undo"
            )
        return OK

    return guarded(work, args)
