"""`backfill policy check FILE|schema|reload`: is a policy file right, and is it in force?"""

from __future__ import annotations

import argparse
import json
import sys

from backfill.ui.client import Asking, add_reading, guarded
from backfill.ui.parser import BAD_DATA, OK, add_verbs

_VERBS = {
    "check": "say everything that is wrong with a policy file",
    "schema": "print the JSON schema of policy files, for editors",
    "reload": "let the daemon read its policy file again now, as SIGHUP does",
}


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill policy`."""
    verbs = add_verbs(parser, _VERBS)
    verbs["check"].add_argument("file", metavar="FILE", help="the policy file")
    verbs["check"].add_argument("--json", action="store_true", help="print the problems as one JSON list")
    add_reading(verbs["reload"])


def run_policy(args: argparse.Namespace) -> int:
    """Check, or print the schema, or let the daemon read its file again."""
    if args.verb == "schema":
        return _schema()
    if args.verb == "reload":
        return guarded(lambda client: _reload(client, as_json=args.json), args)
    from backfill.config import check

    problems = check(args.file)
    if args.json:
        print(json.dumps([p.to_json() for p in problems], indent=2))
    elif problems:
        for problem in problems:
            print(problem, file=sys.stderr)
    else:
        print(
            f"{args.file}: no mistakes found; `backfill daemon --config {args.file} --check` "
            "compares it with the cluster"
        )
    return BAD_DATA if problems else OK


def _reload(client: Asking, *, as_json: bool) -> int:
    answer = client.ask("reload")
    problems = answer["problems"]
    if as_json:
        print(json.dumps(answer, indent=2))
    elif problems:
        for problem in problems:
            print(problem, file=sys.stderr)
        print("not taken over: the policies that were in force stay in force", file=sys.stderr)
    else:
        print(f"{answer['source']}: in force; changed: {', '.join(answer['changed']) or 'nothing'}")
    return BAD_DATA if problems else OK


def _schema() -> int:
    from backfill.config import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
