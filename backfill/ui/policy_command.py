"""`backfill policy check FILE`, `backfill policy schema`: is a policy file right?"""

from __future__ import annotations

import argparse
import json
import sys

from backfill.ui.codes import BAD_DATA, OK
from backfill.ui.parser import add_verbs

_VERBS = {
    "check": "say everything that is wrong with a policy file",
    "schema": "print the JSON schema of policy files, for editors",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill policy`."""
    verbs = add_verbs(parser, _VERBS)
    verbs["check"].add_argument("file", metavar="FILE", help="the policy file")
    verbs["check"].add_argument(
        "--json", action="store_true", help="print the problems as one JSON list"
    )


def run(args: argparse.Namespace) -> int:
    """Check, or print the schema; nothing is changed anywhere."""
    if args.verb == "schema":
        return _schema()
    from backfill.config import check

    problems = check(args.file)
    if args.json:
        print(json.dumps([p.to_json() for p in problems], indent=2))
    elif problems:
        for problem in problems:
            print(problem, file=sys.stderr)
    else:
        print(f"{args.file}: no mistakes found; `backfill daemon --config {args.file} --check` "
              "compares it with the cluster")  # fmt: skip
    return BAD_DATA if problems else OK


def _schema() -> int:
    from backfill.config import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
