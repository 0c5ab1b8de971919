"""`backfill policy check FILE|schema|compare FILE|reload`: is a policy file right, what would it change?"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.ui.client import Asking, add_reading, guarded, print_json
from backfill.ui.errands import patiently
from backfill.ui.parser import BAD_DATA, OK, add_verbs, say

if TYPE_CHECKING:
    from backfill.config import Config, Problem

# So often the daemon is asked whether it is done, seconds.
_LOOK_EVERY_S = 1.0
_VERBS = {
    "check": "report every mistake in a policy file",
    "schema": "print the JSON schema of policy files, for editors",
    "compare": "replay the daemon's latest 24 hours with a policy file, beside what was done",
    "reload": "make the daemon reread its policy file now, as SIGHUP does",
}

_STDIN = "/dev/stdin"
_MORE = "; `backfill daemon --config {file} --check` compares it with the cluster"


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill policy`."""
    verbs = add_verbs(parser, _VERBS)
    verbs["check"].add_argument("file", metavar="FILE", help="the policy file; - for standard input")
    verbs["check"].add_argument("--json", action="store_true", help="print the problems as one JSON list")
    add_reading(verbs["reload"])
    verbs["compare"].add_argument("file", metavar="FILE", type=Path, help="the policy file to try")
    add_reading(verbs["compare"])


def run_policy(args: argparse.Namespace) -> int:
    """Check, or print the schema, or let the daemon read its file again."""
    if args.verb == "schema":
        return _schema()
    if args.verb == "reload":
        return guarded(lambda client: _reload(client, as_json=args.json), args)
    if args.verb == "compare":
        return _compare(args)
    return _check(args)


def _check(args: argparse.Namespace) -> int:
    from backfill.config import ConfigError, hints_of_file, load

    file = _STDIN if args.file == "-" else args.file
    try:
        config = load(file)  # once: it may be a pipe
    except ConfigError as error:
        problems = list(error.problems)
    else:
        for hint in hints_of_file(config):
            say(f"{file}: {hint}")
        problems = _constraint(file, config)
    if args.json:
        print(json.dumps([p.to_json() for p in problems], indent=2))
    elif problems:
        for problem in problems:
            print(problem, file=sys.stderr)
    else:
        more = "" if file == _STDIN else _MORE.format(file=file)
        print(f"{file}: no mistakes found{more}")
    return BAD_DATA if problems else OK


def _constraint(file: str, config: Config) -> list[Problem]:
    """Have HTCondor itself read condor.constraint, which is in a language of its own."""
    from backfill.config import Problem
    from backfill.config.problems import quote

    if config.condor is None or not config.condor.constraint:
        return []
    from backfill.ports.errors import DriverError
    from backfill.ui.assemble import payload_pool

    pool, line = payload_pool(config), config.lines.get("condor.constraint", 0)
    assert pool is not None
    try:
        good = pool.reads_constraint()
    except DriverError as error:
        say(f"{file}:{line}: condor.constraint was not checked: {error}")
        return []
    finally:
        pool.close()
    what = f"is no ClassAd expression: HTCondor cannot read {quote(config.condor.constraint)}"
    remedy = "write it as for condor_q -constraint"
    return [] if good else [Problem(file, line, 1, "condor.constraint", what, remedy)]


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


def _compare(args: argparse.Namespace) -> int:
    from backfill.config.files import read_text
    from backfill.config.reader import Reader

    reader = Reader(str(args.file))
    text = read_text(reader, args.file, "policy file")
    if text is None:
        for problem in reader.problems:
            print(problem, file=sys.stderr)
        return BAD_DATA
    return guarded(lambda client: _compared(client, text, args), args)


def _compared(client: Asking, text: str, args: argparse.Namespace) -> int:
    """Have the daemon play it in a process of its own, for seconds or minutes."""
    name = client.ask("preview", text=text)["id"]
    while (answer := patiently(lambda: client.ask("previewed", id=name), name))["state"] == "running":
        time.sleep(_LOOK_EVERY_S)
    if args.json:
        print_json(answer)
    elif answer["problems"]:
        for problem in answer["problems"]:
            print(problem, file=sys.stderr)
    else:
        from backfill.ui.commands.replay_day import day_lines

        print(f"changed: {', '.join(answer['found']['changed']) or 'nothing'}")
        print("\n".join(day_lines(answer["found"], ["in force", args.file.name])))
    return BAD_DATA if answer["problems"] else OK


def _schema() -> int:
    from backfill.config import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK
