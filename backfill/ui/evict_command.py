"""`backfill evict`: clear a host or a node by hand, or open it again."""

from __future__ import annotations

import argparse

from backfill.core.quantities import parse_hostlist
from backfill.ui import wording
from backfill.ui.client import AskError, Client, add_socket, guarded, print_json
from backfill.ui.codes import NO, OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("subject", metavar="HOST|NODE", help="a host or a node of ours: bm[1-3]")
    parser.add_argument("--undo", action="store_true", help="open it again")
    parser.add_argument(
        "--off",
        action="store_true",
        help="the host is off for good: whatever was on it is given up, and its jobs start anew",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for those who ask later")
    parser.add_argument("--json", action="store_true", help="print the daemon's answers as JSON")
    add_socket(parser)


def run(args: argparse.Namespace) -> int:
    """Check all names first, so that a mistake in one changes nothing."""

    def work(client: Client) -> int:
        hosts = {h["name"]: h for h in client.ask("hosts")["hosts"]}
        nodes = {n["name"]: n for n in client.ask("nodes")["nodes"]}
        names = _names(args.subject)
        for name in names:
            if name not in hosts and name not in nodes:
                raise AskError(wording.unknown("host or node of ours", name, [*hosts, *nodes]), NO)
        for name in names:
            answer = client.ask("evict", subject=name, on=not args.undo, reason=args.reason, off=args.off)
            if args.json:
                print_json(answer)
                continue
            if args.off:
                print(f"{name} is off for good: its nodes are given up, their jobs start anew")
                continue
            print(_opened(name) if args.undo else _closed(name, hosts.get(name)))
        return OK

    return guarded(work, args)


def _names(hostlist: str) -> tuple[str, ...]:
    try:
        return parse_hostlist(hostlist)
    except ValueError as error:
        raise AskError(str(error), NO) from error


def _opened(name: str) -> str:
    return f"{name} is open again"


def _closed(name: str, host: dict[str, object] | None) -> str:
    undo = f"`backfill evict {name} --undo` opens it again"
    if host is None:
        return f"{name} is being evicted and stays so; {undo}"
    instances = host["instances"]
    assert isinstance(instances, list)
    if not instances:
        return f"{name} is closed; no instance was on it; {undo}"
    return f"{name} is closed, its instances are pushed aside: {wording.folded(instances)}; {undo}"
