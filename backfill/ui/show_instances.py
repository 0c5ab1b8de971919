"""`backfill instances`: what the hypervisors show."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from backfill.ui.client import Answer, Client, add_reading, present
from backfill.ui.codes import DEFAULT_POLICY, USAGE
from backfill.ui.parser import say
from backfill.ui.show_leaks import show_leaks
from backfill.ui.terminal import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)
    parser.add_argument("--leaks", action="store_true", help="files on disk that no instance needs any more")
    parser.add_argument("--remove", action="store_true", help="with --leaks: remove them")
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(DEFAULT_POLICY),
        help=f"with --leaks: the policy file (otherwise {DEFAULT_POLICY})",
    )


def run(args: argparse.Namespace) -> int:
    """Ask the daemon and print; leaks are looked for on the hosts themselves."""
    if args.leaks:
        return show_leaks(args)
    if args.remove:
        say("--remove says what to do with --leaks; give both")
        return USAGE
    return present(args, "instances", _show)


def _show(answer: Answer, client: Client) -> None:
    instances = answer["instances"]
    if not instances:
        print("no host has an instance of ours")
        return
    headers = ("INSTANCE", "HOST", "STATE", "CPUS", "MEMORY", "IN USE", "PHASE")
    table(headers, [_row(i) for i in instances])
    for instance in instances:
        if instance["problem"]:
            print()
            print(f"{instance['name']} on {instance['host']}: {instance['problem']}")
    orphans = [i["name"] for i in instances if not i["phase"] and i["state"] != "unknown"]
    if orphans:
        print()
        print(f"without a node of ours, to be removed: {', '.join(orphans)}")


def _row(instance: dict[str, Any]) -> tuple[str, ...]:
    rss_mb = instance["rss_mb"]
    return (
        instance["name"],
        instance["host"],
        instance["state"],
        str(instance["cpus"]),
        f"{instance['memory_mb']} MB",
        "-" if rss_mb is None else f"{rss_mb} MB",
        instance["phase"] or "-",
    )
