"""The commands that tell the daemon to do something now: evict, reclaim, retry and poke."""

from __future__ import annotations

import argparse

from backfill.ui import wording
from backfill.ui.client import AskError, Asking, add_place, guarded, names_of, print_json
from backfill.ui.parser import NO, OK, whole


def add_evict_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("subject", metavar="HOST|NODE", help="a host or a node of ours: bm[1-3]")
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--undo", action="store_true", help="open it again")
    either.add_argument(
        "--off",
        action="store_true",
        help="the host is off for good: its jobs continue elsewhere from their checkpoints, or start over",
    )
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for people who ask later")
    parser.add_argument("--json", action="store_true", help="print the daemon's answers as JSON")
    add_place(parser)


def run_evict(args: argparse.Namespace) -> int:
    """Check all names first, so that a mistake in one changes nothing."""

    def work(client: Asking) -> int:
        names = names_of(args.subject)
        hosts = {h["name"]: h for h in client.ask("hosts")["hosts"]}
        nodes = {n["name"]: n for n in client.ask("nodes")["nodes"]}
        for name in names:
            if name not in hosts and name not in nodes:
                raise AskError(wording.unknown("host or node of ours", name, [*hosts, *nodes]), NO)
        for name in names:
            answer = client.ask("evict", subject=name, on=not args.undo, reason=args.reason, off=args.off)
            if args.json:
                print_json(answer)
                continue
            if args.off:
                print(f"{name} is off for good: its jobs go on elsewhere from a checkpoint, or start over")
                continue
            print(_opened(name) if args.undo else _closed(name, hosts.get(name)))
        return OK

    return guarded(work, args)


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


def add_reclaim_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("host", metavar="HOST", help="a burst host, such as an OpenStack project")
    parser.add_argument(
        "--keep", type=whole(0), default=0, metavar="N", help="how many instances may stay (0)"
    )
    parser.add_argument("--undo", action="store_true", help="lift the limit")
    parser.add_argument("--reason", default="", metavar="TEXT", help="the reason, for people who ask later")
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    add_place(parser)


def run_reclaim(args: argparse.Namespace) -> int:
    """Tell the daemon; what goes, goes drained."""

    def work(client: Asking) -> int:
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


_TRIED_AGAIN = ("failed", "given-up")


def add_retry_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", help="a node that is failed or given-up")
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    add_place(parser)


def run_retry(args: argparse.Namespace) -> int:
    """Ask the daemon to drop the node's record."""

    def work(client: Asking) -> int:
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


def add_poke_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_place(parser)


def run_poke(args: argparse.Namespace) -> int:
    """Poke."""

    def work(client: Asking) -> int:
        client.ask("poke")
        print("Slurm and all hosts are being read now")
        return OK

    return guarded(work, args)
