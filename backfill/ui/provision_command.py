"""`backfill provision NODE`: run Salt's states on nodes now, and say what they changed."""

from __future__ import annotations

import argparse

from backfill.core.quantities import parse_hostlist
from backfill.ui import salting, wording
from backfill.ui.client import AskError
from backfill.ui.codes import NO
from backfill.ui.parser import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", help="one node, or several such as vn[1-3]")
    parser.add_argument(
        "--force", action="store_true", help="run the states even where a look shows that they hold"
    )
    salting.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the states where they do not hold; once more where they failed or nobody answered."""

    def work(site: salting.Salting) -> int:
        seen = dict.fromkeys(nodes, "it is forced") if args.force else site.look(nodes)
        rest = [node for node in nodes or [args.node] if seen.get(node) != ""]
        known = site.salt.enrolled() if rest else {}
        for node in rest:
            if node not in known:
                raise AskError(wording.unknown("node with a key at the Salt master", node, known), NO)
        runs = site.apply(nodes, False, seen)
        again = [node for node, run in runs.items() if not run.ok]
        if again:
            runs |= site.salt.apply(again, test=False)
        return salting.report(runs, args.json, "changed", "as they should be")

    try:
        nodes = parse_hostlist(args.node)
        return salting.with_provisioner(args, work)
    except (AskError, ValueError) as error:
        say(str(error))
        return NO
