"""`backfill provision` and `backfill drift`: run Salt's states on nodes, or see what they would change."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from backfill.engine.checkpoint_desk import UnknownNameError
from backfill.engine.salting import Salting, runs_told
from backfill.ports.errors import DriverError, RefusedError
from backfill.ui import wording
from backfill.ui.client import Answer, AskError, Client, add_policy, add_url, guarded, names_of, print_json
from backfill.ui.errands import awaited
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, OK, UNAVAILABLE, say
from backfill.ui.terminal import table

# What a look may take: the daemon's Salt may have to be started first, and renders one by one.
_LOOK_S, _LOOK_EACH_S = 90.0, 5.0
_LOOKED = "seen to be so, nothing was run"


def _add_site(parser: argparse.ArgumentParser) -> None:
    """Options of both."""
    add_policy(parser, "without --url: the policy file with the section salt")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    add_url(parser)


# Asks whoever can run Salt's states: a daemon elsewhere, or this machine's policy file.
_Ask = Callable[..., Answer]


def _asked(args: argparse.Namespace, work: Callable[[_Ask], int]) -> int:
    """Call `work` with somebody who can; trouble becomes one sentence."""
    if args.url:
        return guarded(lambda client: work(partial(awaited, client)), args)
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import provisioner

    try:
        config = load(args.config)
    except ConfigError as error:
        say(str(error))
        return BAD_DATA
    salt = provisioner(config)
    if salt is None:
        say(f"{args.config} has no section salt: nothing configures nodes here; add one")
        return BAD_DATA
    salting = Salting(salt, partial(_look, config.daemon.socket))
    try:
        return work(partial(_here, salting))
    except UnknownNameError as error:
        say(wording.unknown(error.what, error.name, error.known))
        return NO
    except DriverError as error:
        say(str(error))
        return NO_PERMISSION if isinstance(error, RefusedError) else UNAVAILABLE
    finally:
        salt.close()


def _look(socket: str, nodes: Sequence[str]) -> dict[str, str]:
    """Ask the daemon what differs, by node; empty: nothing; absent: it cannot look there."""
    daemon = Client(socket, _LOOK_S + _LOOK_EACH_S * len(nodes))
    try:
        found: dict[str, str] = daemon.ask("look", nodes=" ".join(nodes))["nodes"]
    except AskError:  # it is down, or of another version: minions can look, too
        return {}
    return found


def _here(salting: Salting, question: str, **body: Any) -> Answer:
    """Do as the daemon does."""
    runs = salting.drift() if question == "drift" else salting.provision(body["nodes"], force=body["force"])
    return {"nodes": runs_told(runs)}


def _report(nodes: list[dict[str, Any]], as_json: bool, changed: str, same: str) -> int:
    """Show runs; `changed` and `same` are the words for a node with and without differences.

    Returns OK when every node answered without a problem, NO otherwise.
    """
    ok = all(run["ok"] for run in nodes)
    if as_json:
        print_json({"nodes": nodes})
        return OK if ok else NO
    if not nodes:
        print("no node has a key at the Salt master, so there is nothing to look at")
        return OK
    rows = []
    for run in nodes:
        if not run["ok"]:
            rows.append((run["node"], "FAILED" if run["answered"] else "SILENT", "-", run["problem"]))
        elif not run["changed"]:
            rows.append((run["node"], same, "-", _LOOKED if run["looked"] else "-"))
        for state, comment in run["changed"] if run["ok"] else ():
            rows.append((run["node"], changed, state, " ".join(comment.split())))
    table(("NODE", "STATES", "STATE", "WHAT"), rows)
    return OK if ok else NO


def add_provision_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", help="one node, or several such as vn[1-3]")
    parser.add_argument(
        "--force", action="store_true", help="run the states even if a check shows that they hold"
    )
    _add_site(parser)


def run_provision(args: argparse.Namespace) -> int:
    """Run the states where they do not hold; once more where they failed or nobody answered."""

    def work(ask: _Ask) -> int:
        answer = ask("provision", nodes=list(nodes), force=args.force)
        return _report(answer["nodes"], args.json, "changed", "as they should be")

    try:
        nodes = names_of(args.node)
    except AskError as error:
        say(str(error))
        return error.code
    return _asked(args, work)


def add_drift_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    _add_site(parser)


def run_drift(args: argparse.Namespace) -> int:
    """Test all nodes with a key: nothing is changed by asking."""

    def work(ask: _Ask) -> int:
        nodes = ask("drift")["nodes"]
        status = _report(nodes, args.json, "DRIFTED", "as they should be")
        return NO if any(run["changed"] for run in nodes) else status

    return _asked(args, work)
