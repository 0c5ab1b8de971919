"""`backfill checkpoint`: saved states of jobs, made, looked at, verified and removed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.core.expiry import by_id, needless
from backfill.core.model.fleet import Checkpoint
from backfill.ports.capabilities import CheckpointKeeper
from backfill.ports.errors import BadOutputError, DriverError
from backfill.ui import wording
from backfill.ui.client import Asking, add_place, guarded, print_json
from backfill.ui.parser import BAD_DATA, DEFAULT_POLICY, NO, OK, UNAVAILABLE, add_verbs, say
from backfill.ui.terminal import table

if TYPE_CHECKING:
    from backfill.config.model import Config

_VERBS = {
    "list": "show all checkpoints",
    "create": "stop a running job for a moment and keep its state",
    "restore": "let a job go on from a checkpoint, on all of its nodes",
    "verify": "read a checkpoint again and compare it with its checksums",
    "delete": "remove checkpoints",
    "expire": "remove checkpoints whose time is over and that nobody needs",
}


def add_checkpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill checkpoint`."""
    verbs = add_verbs(parser, _VERBS)
    for verb in verbs.values():
        verb.add_argument("--json", action="store_true", help="print the answer as JSON")
    for name in ("list", "restore", "verify", "delete", "expire"):
        verbs[name].add_argument(
            "--config",
            metavar="FILE",
            type=Path,
            default=Path(DEFAULT_POLICY),
            help=f"policy file, which names the shared directory (otherwise {DEFAULT_POLICY})",
        )
    verbs["verify"].add_argument(
        "--restore-on",
        default="",
        metavar="HOST",
        help="also load it into memory there once; it never runs and is thrown away",
    )
    verbs["create"].add_argument("job", metavar="JOB", help="a job that runs on our nodes")
    add_place(verbs["create"])
    verbs["restore"].add_argument("id", metavar="ID", help="as `list` shows it")
    add_place(verbs["restore"])
    for name in ("verify", "delete"):
        verbs[name].add_argument("ids", metavar="ID", nargs="+", help="as `list` shows it")


def run_checkpoint(args: argparse.Namespace) -> int:
    """An order goes to the daemon; the others work on the files themselves, daemon or not."""
    if args.verb == "create":
        return guarded(lambda client: _create(args, client), args)
    work: dict[str, Callable[[argparse.Namespace, Config, list[CheckpointKeeper]], int]] = {
        "list": _list,
        "restore": _restore,
        "verify": _verify,
        "delete": _delete,
        "expire": _expire,
    }
    return _with_keepers(args, work[args.verb])


def _with_keepers(
    args: argparse.Namespace, work: Callable[[argparse.Namespace, Config, list[CheckpointKeeper]], int]
) -> int:
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import distinct, keepers, providers

    try:
        config = load(args.config)
        by_host = providers(config, None)
        return work(args, config, distinct(keepers(by_host).values()))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    except DriverError as error:
        say(str(error))
        return BAD_DATA if isinstance(error, BadOutputError) else UNAVAILABLE


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


def _all(found: list[CheckpointKeeper]) -> list[Checkpoint]:
    return [checkpoint for keeper in found for checkpoint in keeper.checkpoints()]


def _list(args: argparse.Namespace, config: Config, found: list[CheckpointKeeper]) -> int:
    kept = _all(found)
    if args.json:
        print_json({"checkpoints": [asdict(c) for c in kept]})
    elif not kept:
        print("no checkpoint is kept")
    else:
        groups = groupby(sorted(kept, key=lambda c: c.id), key=lambda c: c.id)
        headers = ("CHECKPOINT", "JOB", "NODES", "SIZE", "CREATED", "EXPIRES", "KEPT AS", "STATE")
        table(headers, [_row(list(parts)) for _, parts in groups])
        quota_mb = config.policies.checkpoints.quota_mb
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


def _verify(args: argparse.Namespace, config: Config, found: list[CheckpointKeeper]) -> int:
    """Every one is looked at, also after a damaged one."""
    results = []
    tried = f", and {args.restore_on} can load it" if args.restore_on else ""
    for identity in args.ids:
        problem = _problem(identity, found, args.restore_on)
        results.append({"id": identity, "ok": not problem, "problem": problem or ""})
        if not args.json:
            print(problem or f"{identity}: complete and unchanged{tried}")
    if args.json:
        print_json({"verified": results})
    return OK if all(r["ok"] for r in results) else NO


def _problem(identity: str, found: list[CheckpointKeeper], host: str) -> str | None:
    problem = f"{identity}: no provider of this policy file keeps checkpoints"
    for keeper in found:
        try:
            if host:
                keeper.rehearse(host, identity)
            else:
                keeper.verify(identity)
        except DriverError as error:
            problem = str(error)
        else:
            return None
    return problem


def _restore(args: argparse.Namespace, config: Config, found: list[CheckpointKeeper]) -> int:
    """Verify it here, so that the daemon is only asked for what can be done; then order it."""
    problem = _problem(args.id, found, "")
    if problem:
        say(problem)
        return NO
    parts = [c for c in _all(found) if c.id == args.id]

    def work(client: Asking) -> int:
        generations = {c.name: c.generation for c in parts}
        answer = client.ask(
            "put-back", id=args.id, job=parts[0].job, restarts=parts[0].restarts, parts=generations
        )
        if args.json:
            print_json(answer)
        else:
            nodes = wording.folded(answer["nodes"])
            print(f"job {parts[0].job} goes on from {args.id}: {nodes} stops, is replaced, goes on")
        return OK

    return guarded(work, args)


def _delete(args: argparse.Namespace, config: Config, found: list[CheckpointKeeper]) -> int:
    known = {c.id for c in _all(found)}
    unknown = [identity for identity in args.ids if identity not in known]
    if unknown:
        say(wording.unknown("checkpoint", unknown[0], known))
        return NO
    return _drop(args, args.ids, found)


def _expire(args: argparse.Namespace, config: Config, found: list[CheckpointKeeper]) -> int:
    """Those that nobody needs, as Slurm shows it now; the others stay, and it is said why."""
    from backfill.ui.assemble import slurm_manager

    kept = _all(found)
    over = config.policies.checkpoints.expired(kept, time.time())
    jobs = slurm_manager(config).read_jobs(sorted({c.job for c in kept if c.job})) if over else {}
    parts = by_id(kept)
    going: list[str] = []
    for identity in over:
        job_id = parts[identity][0].job
        reason, why_not = needless(parts[identity], parts, jobs)
        if job_id not in jobs:
            why_not = f"{reason}, which may be an odd reading: to remove it all the same, delete it by its id"
        if why_not:
            say(f"{identity} stays: {why_not}")
        else:
            going.append(identity)
    return _drop(args, tuple(going), found)


def _drop(args: argparse.Namespace, ids: tuple[str, ...], found: list[CheckpointKeeper]) -> int:
    for identity in ids:
        for keeper in found:
            keeper.drop(identity)
    if args.json:
        print_json({"removed": list(ids)})
    else:
        print(f"removed: {', '.join(ids)}" if ids else "nothing has expired")
    return OK
