"""`backfill checkpoint`: saved states of jobs, made, looked at, verified and removed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, cast

from backfill.core.model.fleet import Checkpoint
from backfill.engine.checkpoint_desk import CheckpointDesk, UnknownNameError
from backfill.engine.checkpoint_order import CommandError
from backfill.ports.errors import BadOutputError, DriverError, UnreadableError
from backfill.ui import wording
from backfill.ui.client import Answer, Asking, add_place, add_policy, guarded, print_json, shown
from backfill.ui.errands import awaited
from backfill.ui.parser import BAD_DATA, NO, OK, UNAVAILABLE, add_verbs, say
from backfill.ui.terminal import table

_VERBS = {
    "list": "show all checkpoints",
    "create": "stop a running job for a moment and keep its state",
    "restore": "let a job continue from a checkpoint, on all its nodes",
    "verify": "read a checkpoint again and compare it with its checksums",
    "delete": "remove checkpoints",
    "expire": "remove checkpoints whose time is over and that nobody needs",
}


# Asks whoever has the checkpoints: a daemon elsewhere, or their files on this machine, daemon or not.
_Ask = Callable[..., Answer]


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill checkpoint`."""
    verbs = add_verbs(parser, _VERBS)
    for verb in verbs.values():
        verb.add_argument("--json", action="store_true", help="print the answer as JSON")
        add_place(verb)
    for name in ("list", "restore", "verify", "delete", "expire"):
        add_policy(verbs[name], "without --url: the policy file with the shared directory")
    verbs["verify"].add_argument(
        "--restore-on",
        default="",
        metavar="HOST",
        help="also load it into memory there once; it never runs and is discarded",
    )
    verbs["create"].add_argument("job", metavar="JOB", help="a job that runs on our nodes")
    verbs["restore"].add_argument("id", metavar="ID", help="as `list` shows it")
    for name in ("verify", "delete"):
        verbs[name].add_argument("ids", metavar="ID", nargs="+", help="as `list` shows it")


def run_checkpoint(args: argparse.Namespace) -> int:
    """Send an order to the daemon; without --url do the rest on the files, daemon or not."""
    if args.verb == "create":
        return guarded(lambda client: _create(args, client), args)
    work = {"list": _list, "restore": _restore, "verify": _verify, "delete": _delete, "expire": _expire}
    verb = work[args.verb]
    if args.url:
        return guarded(lambda client: verb(args, lambda q, **body: _there(client, q, body)), args)
    return _with_files(args, verb)


def _there(client: Asking, question: str, body: dict[str, object]) -> Answer:
    return client.ask(question) if question == "checkpoints" else awaited(client, question, **body)


def _with_files(args: argparse.Namespace, verb: Callable[[argparse.Namespace, _Ask], int]) -> int:
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import distinct, keepers, providers, slurm_manager

    try:
        config = load(args.config)
        rules = config.policies.checkpoints
        desk = CheckpointDesk(
            distinct(keepers(providers(config, None)).values()),
            rules.quota_mb,
            lambda ids: slurm_manager(config).read_jobs(ids),
            lambda kept: rules.expired(kept, time.time()),
        )
        return guarded(lambda client: verb(args, lambda q, **body: _here(desk, client, q, body)), args)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    except UnknownNameError as error:
        say(wording.unknown(error.what, error.name, error.known))
        return NO
    except CommandError as error:
        say(str(error))
        return NO
    except DriverError as error:
        say(str(error))
        return BAD_DATA if isinstance(error, BadOutputError | UnreadableError) else UNAVAILABLE


def _here(desk: CheckpointDesk, client: Asking, question: str, body: dict[str, Any]) -> Answer:
    """Do as the daemon does; only to go on from a checkpoint takes the daemon itself."""
    match question:
        case "checkpoints":
            answer = desk.told()
        case "verify":
            answer = desk.verify(body["ids"], body["restore_on"])
        case "remove-checkpoints":
            answer = desk.remove(desk.known(body["ids"]))
        case "expire":
            answer = desk.expire()
        case _:
            order = desk.put_back(body["id"])
            answer = {**client.ask("put-back", **order), "job": order["job"]}
    return cast(Answer, shown(answer))


def _create(args: argparse.Namespace, client: Asking) -> int:
    answer = client.ask("checkpoint", job=args.job)
    if args.json:
        print_json(answer)
    else:
        nodes = wording.folded(answer["nodes"])
        print(
            f"checkpoint {answer['id']} was ordered: {nodes} stops, is written to disk and goes on "
            "by itself; `backfill checkpoint list` shows it then"
        )
    return OK


def _list(args: argparse.Namespace, ask: _Ask) -> int:
    answer = ask("checkpoints")
    kept = [Checkpoint(**{**one, "members": tuple(one["members"])}) for one in answer["checkpoints"]]
    if args.json:
        print_json(answer)
    elif not kept:
        print("no checkpoint is kept")
    else:
        groups = groupby(sorted(kept, key=lambda c: c.id), key=lambda c: c.id)
        headers = ("CHECKPOINT", "JOB", "NODES", "SIZE", "CREATED", "EXPIRES", "KEPT AS", "STATE")
        table(headers, [_row(list(parts)) for _, parts in groups])
        quota_mb = answer["quota_mb"]
        of = f" of {quota_mb} MB" if quota_mb is not None else ""
        print(f"\n{sum(c.size_mb for c in kept):.0f} MB{of} are used")
    return OK


def _row(parts: list[Checkpoint]) -> tuple[str, ...]:
    first = parts[0]
    return (
        first.id,
        first.job or "-",
        wording.folded(c.name for c in parts),
        f"{sum(c.size_mb for c in parts):.0f} MB",
        _date(first.created_s),
        _date(first.expires_s),
        first.compression,
        _state(parts),
    )


def _state(parts: list[Checkpoint]) -> str:
    missing = {name for c in parts for name in c.members} - {c.name for c in parts}
    problem = next((c.problem for c in parts if c.problem), "")
    if problem:
        return f"useless: {problem}"
    if missing:
        return f"not complete: {wording.folded(missing)} is missing"
    if not all(c.checksum for c in parts):
        return "being sealed"
    return f"whole, {parts[0].whole[:12]}" if parts[0].whole else "sealed"


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if at_s else "-"


def _verify(args: argparse.Namespace, ask: _Ask) -> int:
    """Every one is looked at, also after a damaged one."""
    answer = ask("verify", ids=args.ids, restore_on=args.restore_on)
    if args.json:
        print_json(answer)
    else:
        tried = f", and {args.restore_on} can load it" if args.restore_on else ""
        for one in answer["verified"]:
            print(one["problem"] or f"{one['id']}: complete and unchanged{tried}")
    return OK if all(one["ok"] for one in answer["verified"]) else NO


def _restore(args: argparse.Namespace, ask: _Ask) -> int:
    """Have it put back. It is verified first, so that nothing is stopped for what cannot be done."""
    answer = ask("restore", id=args.id)
    if args.json:
        print_json(answer)
    else:
        nodes = wording.folded(answer["nodes"])
        print(f"job {answer['job']} goes on from {args.id}: {nodes} stops, is replaced, goes on")
    return OK


def _delete(args: argparse.Namespace, ask: _Ask) -> int:
    """One name that is not known, and none is removed."""
    return _removed(args, ask("remove-checkpoints", ids=args.ids))


def _expire(args: argparse.Namespace, ask: _Ask) -> int:
    """Those that nobody needs, as Slurm shows it now; the others stay, and it is said why."""
    answer = ask("expire")
    for identity, why_not in answer["staying"].items():
        say(f"{identity} stays: {why_not}")
    return _removed(args, answer)


def _removed(args: argparse.Namespace, answer: Answer) -> int:
    if args.json:
        print_json({"removed": answer["removed"]})
    else:
        print(f"removed: {', '.join(answer['removed'])}" if answer["removed"] else "nothing has expired")
    return OK
