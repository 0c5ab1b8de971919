"""`replay --journal`: does a daemon's journal give the same plans again, and where not?"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from backfill.config import load
from backfill.config.problems import ConfigError
from backfill.drivers.store.sqlite import JournalReader
from backfill.ports.errors import DriverError
from backfill.sim.replay.journal import JournalError, JournalOutcome, replay_journal
from backfill.sim.replay.learning import as_yaml, learned
from backfill.ui.outfile import OutputError, require_writable, write_text
from backfill.ui.parser import BAD_DATA, NO, OK

_SHOWN = 10  # plans; the others are only counted


def run_journal(args: argparse.Namespace) -> int:
    """Replay the journal and print; 1 where a plan came out differently."""
    try:
        if args.learn is not None:
            return _learn(args)
        outcome = _replayed(args)
    except (JournalError, ConfigError, DriverError, OutputError, ValueError) as error:
        sys.stderr.write("".join(f"backfill: {line}\n" for line in str(error).splitlines()))
        return BAD_DATA
    if args.json:
        sys.stdout.write(json.dumps(asdict(outcome)) + "\n")
    else:
        sys.stdout.write("\n".join(_lines(outcome)) + "\n")
    return NO if outcome.differences else OK


def _replayed(args: argparse.Namespace) -> JournalOutcome:
    policies = load(args.policy).policies
    reader = JournalReader(args.journal)
    try:
        return replay_journal(reader.read(), policies)
    finally:
        reader.close()


def _learn(args: argparse.Namespace) -> int:
    require_writable([args.learn], [args.journal])
    reader = JournalReader(args.journal)
    try:
        costs = learned(reader.read())
    finally:
        reader.close()
    if not costs:
        raise JournalError(f"{args.journal} has no call that succeeded, so nothing can be learned")
    write_text(args.learn, [as_yaml(costs)])
    sys.stdout.write(f"{len(costs)} step costs written to {args.learn}\n")
    return OK


def _lines(outcome: JournalOutcome) -> list[str]:
    lines = [line for found in outcome.differences[:_SHOWN] for line in found.lines()]
    more = len(outcome.differences) - _SHOWN
    if more > 0:
        lines.append(f"... and {more} more plans")
    if outcome.skipped:
        lines.append(f"{outcome.skipped} records before the first whole run of a daemon were only remembered")
    if outcome.policy_changes:
        lines.append(
            f"the policy file was changed {outcome.policy_changes} times meanwhile; plans were "
            "compared with the one that was given"
        )
    verdict = f"{len(outcome.differences)} differ" if outcome.differences else "all the same"
    lines.append(
        f"{outcome.plans} plans with {outcome.steps} steps from {outcome.changes} changes, "
        f"{outcome.lives} starts of the daemon: {verdict}"
    )
    return lines
