"""`backfill provision` and `backfill drift`: run Salt's states on nodes, or see what they would change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from backfill.core.model.quantities import parse_hostlist
from backfill.ports.errors import DriverError, RefusedError
from backfill.ports.provider import Provisioner, StateRun
from backfill.ui import wording
from backfill.ui.client import AskError, Client, print_json
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, OK, UNAVAILABLE, say
from backfill.ui.terminal import table

_POLICY = "/etc/backfill/policy.yaml"
# What a look may take: the daemon's Salt may have to be started first, and renders one by one.
_LOOK_S, _LOOK_EACH_S = 90.0, 5.0
_LOOKED = "seen to be so, nothing was run"


def _add_site(parser: argparse.ArgumentParser) -> None:
    """Options of both."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=Path(_POLICY),
        help=f"policy file, whose section salt is used (otherwise {_POLICY})",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


class Salting:
    """The provisioner of the policy file, and the daemon that can look into its guests."""

    def __init__(self, salt: Provisioner, socket: str) -> None:
        self.salt = salt
        self._socket = socket

    def look(self, nodes: Sequence[str]) -> dict[str, str]:
        """Ask the daemon what differs, by node; empty: nothing; absent: it cannot look there."""
        daemon = Client(self._socket, _LOOK_S + _LOOK_EACH_S * len(nodes))
        try:
            found: dict[str, str] = daemon.ask("look", nodes=" ".join(nodes))["nodes"]
        except AskError:  # it is down, or of another version: minions can look, too
            return {}
        return found

    def apply(self, nodes: Sequence[str], test: bool, seen: dict[str, str]) -> dict[str, StateRun]:
        """Runs for all but those that were seen to be as they should."""
        same = {n: StateRun(n, answered=True, looked=True) for n in nodes if seen.get(n) == ""}
        rest = [node for node in nodes if node not in same]
        return same | (self.salt.apply(rest, test, must_run=seen) if rest else {})


def with_provisioner(args: argparse.Namespace, work: Callable[[Salting], int]) -> int:
    """Call `work` with the provisioner of the policy file; trouble becomes one sentence."""
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import provisioner

    try:
        config = load(args.config)
    except ConfigError as error:
        say(str(error))
        return BAD_DATA
    salt = provisioner(config)
    if salt is None:
        say(f"{args.config} has no section salt: nothing configures nodes here")
        return NO
    try:
        return work(Salting(salt, config.daemon.socket))
    except DriverError as error:
        say(str(error))
        return NO_PERMISSION if isinstance(error, RefusedError) else UNAVAILABLE
    finally:
        salt.close()


def report(runs: dict[str, StateRun], as_json: bool, changed: str, same: str) -> int:
    """Show runs; `changed` and `same` are the words for a node with and without differences.

    Returns OK when every node answered without a problem, NO otherwise.
    """
    ok = all(run.ok for run in runs.values())
    if as_json:
        print_json({"nodes": [{**asdict(r), "ok": r.ok} for _, r in sorted(runs.items())]})
        return OK if ok else NO
    if not runs:
        print("no node has a key at the Salt master, so there is nothing to look at")
        return OK
    rows = []
    for node, run in sorted(runs.items()):
        if not run.ok:
            rows.append((node, "FAILED" if run.answered else "SILENT", "-", run.problem))
        elif not run.changed:
            rows.append((node, same, "-", _LOOKED if run.looked else "-"))
        for state, comment in run.changed if run.ok else ():
            rows.append((node, changed, state, " ".join(comment.split())))
    table(("NODE", "STATES", "STATE", "WHAT"), rows)
    return OK if ok else NO


def add_provision_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", help="one node, or several such as vn[1-3]")
    parser.add_argument(
        "--force", action="store_true", help="run the states even where a look shows that they hold"
    )
    _add_site(parser)


def run_provision(args: argparse.Namespace) -> int:
    """Run the states where they do not hold; once more where they failed or nobody answered."""

    def work(site: Salting) -> int:
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
        return report(runs, args.json, "changed", "as they should be")

    try:
        nodes = parse_hostlist(args.node)
        return with_provisioner(args, work)
    except (AskError, ValueError) as error:
        say(str(error))
        return NO


def add_drift_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    _add_site(parser)


def run_drift(args: argparse.Namespace) -> int:
    """A test run over all nodes with a key: nothing is changed by asking."""

    def work(site: Salting) -> int:
        nodes = list(site.salt.enrolled())
        runs = site.apply(nodes, True, site.look(nodes))
        status = report(runs, args.json, "DRIFTED", "as they should be")
        return NO if any(run.changed for run in runs.values()) else status

    return with_provisioner(args, work)
