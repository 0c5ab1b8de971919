"""`replay` with a policy: what it would have harvested, and what that would have cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill.config import Config, load
from backfill.config.problems import ConfigError
from backfill.core.model.quantities import Resources
from backfill.core.policy import PolicySet
from backfill.sim.replay.beginning import beside, clock_s, meets, need_one_clock
from backfill.sim.replay.costs import ReplayCosts, load_costs
from backfill.sim.replay.fitting import (
    LOW_ALREADY,
    MisfitError,
    depth_for,
    everywhere,
    low_jobs,
    memory_for,
    node_names,
    sides,
)
from backfill.sim.replay.policy_replay import (
    BrokenPromiseError,
    DaemonTerms,
    Setting,
    collected_seldom,
    reference,
    run,
)
from backfill.sim.replay.reservation_file import load_reservations
from backfill.sim.replay.unplayed import unplayed, untold_qos
from backfill.sim.scenarios.shipped import located
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.schedulers.reservations import ReservationEntry
from backfill.sim.traces.models import htc_pilot
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.shake import shaken
from backfill.sim.traces.trace import JobTrace, TraceBuilder, TraceError, describe_counts, fitted
from backfill.sim.traces.window import dates_of, told_early
from backfill.ui.commands.replay_options import HTC, window
from backfill.ui.outfile import OutputError, require_writable, write_text
from backfill.ui.parser import BAD_DATA, NO, OK
from backfill.ui.report.figures import Summary, summary
from backfill.ui.report.gantt import Gantt
from backfill.ui.report.replay_exports import batsim_chunks, perfetto_chunks
from backfill.ui.report.replay_page import page_chunks
from backfill.ui.report.replay_text import Played, as_json, csv_chunks, text_lines


def run_policy(args: argparse.Namespace) -> int:
    """Replay under one policy or two and tell; return the exit status, 1 for a broken promise."""
    try:
        outputs = (args.jobs_csv, args.batsim_csv, args.perfetto, args.report)
        require_writable(outputs, (args.trace, args.policy, args.against, args.costs, args.reservations))
        setting, policies, terms = _input(args)
        with collected_seldom():
            played = _play(args, setting, policies, terms)
        for path, chunks in _outputs(args, setting, played):
            write_text(path, chunks)
    except (TraceError, ConfigError, MisfitError, OutputError) as error:
        sys.stderr.write("".join(f"backfill: {line}\n" for line in str(error).splitlines()))
        return BAD_DATA
    except BrokenPromiseError as error:
        lines = [f"broken promise: {text}" for text in error.violations] + error.lines
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        return NO
    if args.json:
        sys.stdout.write(json.dumps(as_json(setting, played)) + "\n")
    else:
        sys.stdout.write("\n".join(text_lines(setting, played)) + "\n")
    return OK


def _play(
    args: argparse.Namespace,
    setting: Setting,
    policies: Mapping[str, PolicySet],
    terms: Mapping[str, DaemonTerms],
) -> list[Played]:
    """One run without instances and one with each policy, all observed equally long, per seed."""
    drawn = args.report is not None or args.perfetto is not None
    bare = reference(setting, next(iter(policies.values())))
    played: list[Played] = []
    for name, one in policies.items():
        gantt = Gantt() if drawn else None
        found = run(setting, one, bare.ledger.window.end_s, gantt, terms=terms[name])
        played.append(Played(name, found, summary(found, bare), (), gantt))
    times = max(args.seeds, args.shake)
    if times == 1:
        return played
    repeats: dict[str, list[Summary]] = {one.name: [one.summary] for one in played}
    for seed in range(args.seed + 1, args.seed + times):
        other = _seeded(args, setting, policies.values(), seed)
        bare = reference(other, next(iter(policies.values())))
        for name, one in policies.items():
            found = run(other, one, bare.ledger.window.end_s, terms=terms[name])
            repeats[name].append(summary(found, bare))
    return [replace(one, repeats=tuple(repeats[one.name])) for one in played]


def _seeded(args: argparse.Namespace, setting: Setting, policies: Iterable[PolicySet], seed: int) -> Setting:
    """Return the same input with everything random drawn anew."""
    low, high = setting.low, setting.high
    if args.shake > 1:
        high = shaken(high, seed)
    if args.backlog is not None and HTC.fullmatch(args.backlog):
        low = low_jobs(_backlog(args.backlog, seed, high, anew=True), policies)
    return replace(setting, high=high, low=low, seed=seed)


def _outputs(
    args: argparse.Namespace, setting: Setting, played: list[Played]
) -> Iterator[tuple[Path, Iterable[str]]]:
    """Yield the files that were asked for, with what goes into them."""
    if args.jobs_csv is not None:
        yield args.jobs_csv, csv_chunks(setting, played)
    if args.batsim_csv is not None:
        yield args.batsim_csv, batsim_chunks(setting, played[-1])
    if args.perfetto is not None:
        yield args.perfetto, perfetto_chunks(setting, played)
    if args.report is not None:
        yield args.report, page_chunks(setting, played)


# --- input ---------------------------------------------------------------------------------------


def _input(args: argparse.Namespace) -> tuple[Setting, dict[str, PolicySet], dict[str, DaemonTerms]]:
    files = [args.policy] if args.against is None else [args.policy, args.against]
    configs = [load(path) for path in files]
    policies = _named(files, [config.policies for config in configs])
    terms = {name: _terms(config) for name, config in zip(policies, configs, strict=True)}
    if args.all_nodes:
        policies = {name: everywhere(one, args.cluster) for name, one in policies.items()}
    first = next(iter(policies.values()))
    need_same(policies)
    high, own, told = _sides(args, first)
    low = own if args.backlog is None else _backlog(args.backlog, args.seed, high)
    low = None if low is None else low_jobs(low, policies.values())
    for title, trace in (("trace", high), ("backlog", low)):
        if trace is not None and trace.left_out:
            counts = describe_counts(trace.left_out.items())
            sys.stderr.write(f"left out of the {title}: {counts}\n")
        if trace is not None and trace.noted:
            sys.stderr.write(f"noted in the {title}: {describe_counts(trace.noted.items())}\n")
    start_s, notes = clock_s(high, policies.values())
    named = zip(policies, configs, strict=True)
    unmet = [note for name, config in named for note in unplayed(name, config, low)]
    notes = (*notes, *told, *_narrow(args.cluster, first, low), *unmet)
    if low is not None and len(low) and args.backlog is not None and not HTC.fullmatch(args.backlog):
        low, moved = beside(high, low)
        notes += moved
    sys.stderr.write("".join(f"note: {note}\n" for note in notes))
    memory_mb = max(memory_for(one, args.cluster) for one in policies.values())
    setting = Setting(
        args.cluster,
        high,
        low,
        node_names(first, args.cluster),
        args.node_memory or memory_mb,
        depth_for(first, args.cluster),
        args.saves_every,
        args.save_takes,
        ReplayCosts() if args.costs is None else load_costs(args.costs),
        args.seed,
        _reservations(args, node_names(first, args.cluster)),
        args.scheduler,
        args.tie,
        whole=high.bound is not None,
        start_s=start_s,
        notes=notes,
    )
    return setting, policies, terms


def _narrow(cluster: Cluster, policies: PolicySet, low: JobTrace | None) -> tuple[str, ...]:
    """Say how little a replay can show for want of jobs, or of nodes that may carry instances."""
    hosts, notes = len(policies.hosts), []
    if low is None or not len(low):
        notes.append("no low-priority work: give --backlog htc:1000, or a dump with low partitions")
    if hosts < cluster.nodes:
        notes.append(
            f"{hosts} of {cluster.nodes} nodes may carry instances, the hosts of the policy; "
            "--all-nodes lets all of them"
        )
    return tuple(notes)


def _terms(config: Config) -> DaemonTerms:
    keeps = {host.name: Resources(host.keep_cpus, host.keep_memory_mb) for host in config.hosts}
    return DaemonTerms(config.daemon.poll_s, keeps)


def _sides(
    args: argparse.Namespace, policies: PolicySet
) -> tuple[JobTrace, JobTrace | None, tuple[str, ...]]:
    """Read the trace: its jobs of high priority, those of low priority, and what people must know."""
    whole = fitted(args.trace, _trace(args), args.cluster.processors)
    notes = (*told_early(whole), *untold_qos(policies.priorities, whole))
    high, low = sides(whole, policies.priorities)
    if not len(high):
        what = "has low-priority jobs only, as the policy has it"
        raise TraceError(args.trace, 0, f"{what}; give a trace with others, and this one as --backlog")
    if not len(low):
        return high, None, notes
    if args.backlog is not None:
        left_out = {**high.left_out, LOW_ALREADY: len(low)}
        return replace(high, left_out=left_out, origin=whole.origin), None, notes
    told = f"{len(low)} jobs of the trace are low-priority as the policy has it, and wait for instances"
    return high, low, (*notes, told)


def _trace(args: argparse.Namespace) -> JobTrace:
    return read_trace(located(args.trace), args.format, window(args))


def _reservations(args: argparse.Namespace, names: tuple[str, ...]) -> tuple[ReservationEntry, ...]:
    return () if args.reservations is None else load_reservations(args.reservations, names)


def _named(files: list[Path], policies: list[PolicySet]) -> dict[str, PolicySet]:
    """By the shortest names that tell them apart; a policy without `high` gets a partition."""
    names = [path.name for path in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in files]
    if len(set(names)) < len(names):
        names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
    return {
        name: one if one.priorities.high else replace(one, priorities=replace(one.priorities, high=("high",)))
        for name, one in zip(names, policies, strict=True)
    }


def need_same(policies: Mapping[Any, PolicySet]) -> None:
    """Two policies can be compared only on the same nodes and partitions."""
    one, *others = policies.values()
    for other in others:
        for what in ("cluster", "priorities", "hosts"):
            if getattr(one, what) != getattr(other, what):
                raise MisfitError(
                    f"the two policies differ in {what}, so they cannot be compared on one input; "
                    f"make {what} the same in a copy"
                )


def _backlog(text: str, seed: int, high: JobTrace, *, anew: bool = False) -> JobTrace:
    """Read a trace, or draw jobs of the HTC model that all wait at the beginning.

    Of a trace of the same time it takes what lies in the window of `high`. `anew`: its own seed is
    counted up together with `seed`.
    """
    match = HTC.fullmatch(text)
    if match is None:
        low, dates = read_trace(located(Path(text))), dates_of(high)
        need_one_clock(Path(text), high, low)
        if dates is not None and meets(low, dates):
            return read_trace(located(Path(text)), window=dates)
        return low
    jobs = int(match["jobs"])
    builder = TraceBuilder()
    own = int(match["seed"] or 0)
    drawn = htc_pilot(own + seed if anew or not own else own, jobs, 1.0, backlog=jobs)
    for number, job in enumerate(drawn, 1):
        builder.add(number, job.submit_s, job.run_s, job.processors, job.estimate_s)
    return builder.build()
