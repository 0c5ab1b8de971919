"""`backfill drift`: what Salt's states would change on every node, bare metal included."""

from __future__ import annotations

import argparse

from backfill.ui import salting
from backfill.ui.codes import NO


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    salting.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """A test run over all nodes with a key: nothing is changed by asking."""

    def work(site: salting.Salting) -> int:
        nodes = list(site.salt.enrolled())
        runs = site.apply(nodes, True, site.look(nodes))
        status = salting.report(runs, args.json, "DRIFTED", "as they should be")
        return NO if any(run.changed for run in runs.values()) else status

    return salting.with_provisioner(args, work)
