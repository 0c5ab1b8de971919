"""`backfill retry NODE`: let a node that failed or was given up be tried again."""

from __future__ import annotations

import argparse

from backfill.ui import wording
from backfill.ui.client import AskError, Client, add_socket, guarded, print_json
from backfill.ui.codes import NO, OK

_TRIED_AGAIN = ("failed", "given-up")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", help="a node that is failed or given-up")
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    add_socket(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the daemon to drop the node's record."""

    def work(client: Client) -> int:
        phases = {n["name"]: n["phase"] for n in client.ask("nodes")["nodes"]}
        if args.node not in phases:
            failed = [name for name, phase in phases.items() if phase in _TRIED_AGAIN]
            raise AskError(wording.unknown("failed node", args.node, failed), NO)
        if phases[args.node] not in _TRIED_AGAIN:
            raise AskError(f"{args.node} is {phases[args.node]}: nothing is to be tried again", NO)
        answer = client.ask("retry", subject=args.node)
        if args.json:
            print_json(answer)
        else:
            print(f"{args.node} is forgotten; its name is used again when an instance is needed")
        return OK

    return guarded(work, args)
