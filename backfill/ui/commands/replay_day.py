"""`replay --journal --last`: what policies would have made of a journal's latest hours, beside what was."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from backfill.config import Config, load
from backfill.config.problems import ConfigError
from backfill.core.model import changes as ch
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.store.sqlite import JournalReader
from backfill.engine.policyfile import differing
from backfill.ports.errors import DriverError
from backfill.ports.storage import Record, RecordWindow
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.day import LEAD_S, EmptyDayError, journal_day
from backfill.sim.replay.day_replay import day_figures
from backfill.sim.replay.fitting import MisfitError
from backfill.sim.replay.learning import learned
from backfill.sim.replay.policy_replay import BrokenPromiseError, DaemonTerms, collected_seldom
from backfill.sim.replay.unplayed import unplayed
from backfill.sim.traces.trace import JobTrace
from backfill.ui.commands.replay_policy import need_same
from backfill.ui.parser import BAD_DATA, NO, OK

_CLOCK = (ch.ClockRead.__name__,)
_LASTING = (ch.JobSeen.__name__, ch.JobGone.__name__, ch.HostSeen.__name__)
_FIRST = 500  # records of a host in which its first word is looked for
DONE, IN_FORCE, PROPOSED = "was done", "policy", "against"


def run_day(args: argparse.Namespace) -> int:
    """Replay the day and print; 1 where a policy broke a promise."""
    try:
        files = [args.policy] if args.against is None else [args.policy, args.against]
        configs = [load(path) for path in files]
        policies = [_complete(config.policies) for config in configs]
        need_same(dict(enumerate(policies)))
        found = _compared(args.journal, args.last, policies, configs)
    except (ConfigError, DriverError, EmptyDayError, MisfitError) as error:
        sys.stderr.write("".join(f"backfill: {line}\n" for line in str(error).splitlines()))
        return BAD_DATA
    except BrokenPromiseError as error:
        sys.stderr.write("".join(f"broken promise: {text}\n" for text in error.violations))
        return NO
    if args.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        sys.stdout.write("\n".join(day_lines(found, [path.name for path in files])) + "\n")
    return OK


def _complete(policies: PolicySet) -> PolicySet:
    """One whose file names no partition of high-priority jobs gets one: all others are meant."""
    priorities = policies.priorities
    return policies if priorities.high else replace(policies, priorities=replace(priorities, high=("high",)))


def _unplayed(configs: list[Config], low: JobTrace) -> Iterator[str]:
    """Yield what a replay of the day does not follow."""
    for config in configs:
        yield from unplayed(config.source.name, config, low)
    keeps = [[(host.keep_cpus, host.keep_memory_mb) for host in config.hosts] for config in configs]
    if keeps[0] != keeps[-1]:
        yield "not replayed: keep_cpus and keep_memory_mb of hosts: they keep what they kept on that day"


def _compared(
    journal: Path, last_s: float, policies: list[PolicySet], configs: list[Config]
) -> dict[str, Any]:
    reader = JournalReader(journal)
    try:
        end_s = _end_s(reader)
        begin = _first_after(reader, end_s - last_s - LEAD_S)
        records = chain(_last_words(reader, begin, policies[0].hosts), reader.read(begin))
        day = journal_day(records, policies[0], end_s - last_s, end_s)
        costs = ReplayCosts(StepCosts(**learned(reader.read(_first_after(reader, end_s - last_s)))))
    finally:
        reader.close()
    with collected_seldom():
        figures = [
            day_figures(day, one, costs, DaemonTerms(config.daemon.poll_s))
            for one, config in zip(policies, configs, strict=True)
        ]
    named = dict(zip((IN_FORCE, PROPOSED), figures, strict=False))
    return {
        "start_s": day.start_s,
        "end_s": day.end_s,
        "hosts": day.cluster.nodes,
        "cpus": day.cluster.cpus,
        "high_jobs": len(day.high),
        "low_jobs": len(day.low),
        "notes": [*day.notes, *_unplayed(configs, day.low)],
        "changed": differing(policies[0], policies[-1]),
        "figures": {name: asdict(one) for name, one in {DONE: day.figures, **named}.items()},
    }


# --- the journal ---------------------------------------------------------------------------------


def _end_s(reader: JournalReader) -> float:
    latest = reader.page(RecordWindow(newest=True), 1, 1)
    if not latest:
        raise EmptyDayError("the journal is empty; let the daemon run for a while first")
    return latest[0].at_s


def _first_after(reader: JournalReader, at_s: float) -> int:
    """Find the id behind which the records are of this time or later: they are in order of both."""
    low, high = 0, reader.page(RecordWindow(newest=True), 1, 1)[0].id
    while low < high:
        middle = (low + high) // 2
        found = _next(reader, middle)
        if found is None or found.at_s >= at_s:
            high = middle
        else:
            low = found.id
    return low


def _last_words(reader: JournalReader, last_id: int, hosts: Sequence[str]) -> list[Record]:
    """Return what the daemon of that record knew then: it told of everything at its start, then of changes.

    Of a host whose node has had a long story since, the first word has to do.
    """
    begun = (one.id for one in reader.read(types=_CLOCK) if one.id <= last_id and one.body.get("began"))
    after_id = max(begun, default=0)
    found = list(reader.latest(after_id, last_id, _LASTING))
    known = {one.subject for one in found}
    for host in hosts:
        first = (one for one in islice(reader.read(after_id, host), _FIRST) if one.id <= last_id)
        if host not in known:
            found += islice((one for one in first if one.body.get("t") == ch.HostSeen.__name__), 1)
    return sorted(found, key=attrgetter("id"))


def _next(reader: JournalReader, after_id: int) -> Record | None:
    return next(iter(reader.page(RecordWindow(after_id=after_id), 1, 1)), None)


# --- for people ----------------------------------------------------------------------------------

_ROWS = (
    ("core hours of jobs on hosts' own nodes", "metal_core_h", "{:.2f}"),
    ("core hours of jobs on instances", "worked_core_h", "{:.2f}"),
    ("  of them lost", "lost_core_h", "{:.2f}"),
    ("low-priority jobs completed", "low_completed", "{:.0f}"),
    ("evictions", "evictions", "{:.0f}"),
    ("room free after, median s", "room_median_s", "{:.3f}"),
    ("room free after, longest s", "room_worst_s", "{:.3f}"),
)


def day_lines(found: dict[str, Any], names: list[str]) -> Iterator[str]:
    """Tell a comparison for people; `names` are those of the policy files."""
    figures = found["figures"]
    heads = [DONE, *names]
    yield (
        f"{found['high_jobs']} high-priority and {found['low_jobs']} low-priority jobs on "
        f"{found['hosts']} hosts with {found['cpus']} CPUs"
    )
    rows = [(title, [_shown(one[key], form) for one in figures.values()]) for title, key, form in _ROWS]
    rows += [(name, [str(one["steps"][name]) for one in figures.values()]) for name in figures[DONE]["steps"]]
    width = max(len(title) for title, _ in rows)
    yield " ".join([" " * width, *(f"{head[-24:]:>24}" for head in heads)])
    for title, cells in rows:
        yield " ".join([f"{title:<{width}}", *(f"{cell:>24}" for cell in cells)])
    yield from (f"note: {note}" for note in found["notes"])


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
