"""`backfill replay`: a trace or a scenario in simulated time; a scenario with `--live` on a real lab."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from backfill.sim.replay.bare import replay
from backfill.sim.scenarios.shipped import located, looks_like_scenario, remedy, there
from backfill.sim.schedulers.machine import SCHEDULERS, TIES
from backfill.sim.schedulers.reservations import PoolEntry
from backfill.sim.traces.reader import READERS, read_trace
from backfill.sim.traces.trace import TraceError, describe_counts, fitted
from backfill.sim.traces.window import told_early
from backfill.ui.commands import replay_options as values
from backfill.ui.outfile import OutputError, require_writable, write_text
from backfill.ui.parser import BAD_DATA, OK, USAGE, Parser
from backfill.ui.report.bare_text import as_json, measure, text_lines

# What each way of replaying understands; anything else that is given would be ignored.
_JOURNAL = frozenset({"journal", "policy", "learn", "json", "last"})
_DAY = frozenset({"journal", "policy", "against", "json", "last"})
_BARE = frozenset(
    {
        "trace",
        "from",
        "to",
        "cluster",
        "scheduler",
        "tie",
        "format",
        "no_instances",
        "reservations",
        "jobs_csv",
        "json",
    }
)
_NOT_WITH_POLICY = {
    "no_instances": "--no-instances contradicts --policy; leave one of them out",
    "learn": "--learn needs --journal FILE, a daemon's journal to learn from",
    "last": "--last needs --journal FILE, a daemon's journal",
}


_JUNIT = "--junit goes with a scenario; leave it out, or name one, such as first_day"


class _InputError(Exception):
    """A file beside the trace is wrong: a line for each problem."""


_LIVE_HELP = "play a scenario on a real lab, as `backfill demo` does (see `replay --live --help`)"


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a trace's replay; `--live` and `--junit` are only shown here."""
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    parser.add_argument(
        "--junit", type=Path, metavar="OUT", help="with a scenario: write the expectations as a JUnit report"
    )
    if isinstance(parser, Parser):
        parser.elsewhere = dict.fromkeys(("--slurm", "--keep"), "goes with a scenario and --live")
    _add_trace_arguments(parser)


def _add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of a replay of a trace."""
    parser.add_argument(
        "trace",
        type=Path,
        nargs="?",
        help="SWF (plain, .gz, .zip), a dump of `sacct -P`, or a scenario (see `replay --live`)",
    )
    parser.add_argument(
        "--journal",
        type=Path,
        metavar="FILE",
        help="instead of a trace: plan again what a daemon planned, and show what differs",
    )
    parser.add_argument(
        "--learn",
        type=Path,
        metavar="OUT",
        help="with --journal: only write what its calls took, as a file for --costs",
    )
    parser.add_argument(
        "--last",
        type=values.duration,
        default=0.0,
        metavar="TIME",
        help="with --journal: what --policy and --against would have made of its latest hours (24h)",
    )
    parser.add_argument(
        "--cluster",
        type=values.cluster,
        metavar="NODESxCPUS",
        help="equal nodes and the processors of each, for example 128x1",
    )
    parser.add_argument(
        "--scheduler", choices=SCHEDULERS, default="easy", help="the scheduler of bare metal (easy)"
    )
    parser.add_argument(
        "--tie",
        choices=TIES,
        default="batch",
        help="batch: completions, arrivals, then one pass; eventwise: arrivals first, a pass each",
    )
    parser.add_argument("--format", choices=("auto", *READERS), default="auto", help="of the trace (auto)")
    parser.add_argument(
        "--from",
        type=values.moment,
        metavar="TIME",
        help="observe from then on (2024-01-10T08:00, or seconds as the trace has them)",
    )
    parser.add_argument("--to", type=values.moment, metavar="TIME", help="observe until then")
    parser.add_argument(
        "--no-instances", action="store_true", help="replay the bare cluster without instances"
    )
    parser.add_argument(
        "--jobs-csv", type=Path, metavar="OUT", help="write job_id,submit,start,end,processors"
    )
    parser.add_argument(
        "--reservations",
        type=Path,
        metavar="FILE",
        help="what Slurm reserves: nodes, or without a policy processors (YAML)",
    )
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")
    _add_policy_arguments(parser)


def _add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("with instances")
    group.add_argument("--policy", type=Path, metavar="FILE", help="the policy to replay with")
    group.add_argument("--against", type=Path, metavar="FILE", help="a second policy to compare")
    group.add_argument(
        "--backlog",
        type=values.work,
        metavar="WORK",
        help="low-priority work: a trace, or htc:JOBS or htc:SEED:JOBS drawn from the model",
    )
    group.add_argument("--costs", type=Path, metavar="FILE", help="durations of steps (YAML)")
    group.add_argument("--seed", type=int, default=1, help="for everything random (1)")
    group.add_argument(
        "--seeds",
        type=values.seeds,
        default=1,
        metavar="N",
        help="repeat with N seeds and say how sure the differences are",
    )
    group.add_argument(
        "--shake",
        type=values.seeds,
        default=1,
        metavar="N",
        help="repeat N times; from the second on, all submit and run times are moved a little",
    )
    group.add_argument("--report", type=Path, metavar="OUT", help="write one HTML page")
    group.add_argument("--perfetto", type=Path, metavar="OUT", help="write a trace for ui.perfetto.dev")
    group.add_argument("--batsim-csv", type=Path, metavar="OUT", help="write out_jobs.csv of the last policy")
    group.add_argument(
        "--all-nodes",
        action="store_true",
        help="let every node carry instances, not only the hosts of the policy",
    )
    group.add_argument(
        "--saves-every",
        type=values.duration,
        default=0.0,
        metavar="TIME",
        help="how often low-priority jobs save themselves; a requeued job continues from there",
    )
    group.add_argument(
        "--save-takes",
        type=values.duration,
        default=0.0,
        metavar="TIME",
        help="how long one such save takes (0)",
    )
    group.add_argument(
        "--node-memory", type=values.size, default=0, metavar="SIZE", help="memory of each node"
    )


def run_replay(args: argparse.Namespace) -> int:
    """Replay and print; return the exit status. What was left out is told on stderr."""
    if args.trace is not None and looks_like_scenario(args.trace):
        named = args.trace.with_name(f"{args.trace.name}.yaml")
        sys.stderr.write(f"backfill: {args.trace}: this looks like a scenario; name it {named}\n")
        return BAD_DATA
    reports = getattr(args, "junit", None) is not None
    problem = _JUNIT if reports else _misuse(args, _given(args))
    if problem:
        sys.stderr.write(f"backfill: {problem}\n")
        return USAGE
    if args.journal is not None:
        # Imported here: a bare replay is to start at once.
        from backfill.ui.commands.replay_day import run_day
        from backfill.ui.commands.replay_journal import run_journal

        return run_day(args) if args.last else run_journal(args)
    if not there(located(args.trace)):
        what = "there is no such file, and no trace or scenario of ours is called so"
        sys.stderr.write(f"backfill: {args.trace}: {what}; {remedy(args.trace)}\n")
        return BAD_DATA
    if args.policy is not None:
        from backfill.ui.commands.replay_policy import run_policy

        return run_policy(args)
    return _run_bare(args)


def _run_bare(args: argparse.Namespace) -> int:
    try:
        require_writable([args.jobs_csv], [args.trace, args.reservations])
        kept = _kept(args)
        trace = read_trace(located(args.trace), args.format, values.window(args))
        trace = fitted(args.trace, trace, args.cluster.processors)
        result = replay(trace, args.cluster, args.scheduler, args.tie, kept)
        if args.jobs_csv is not None:
            write_text(args.jobs_csv, result.csv_chunks())
    except (TraceError, _InputError, OutputError) as error:
        sys.stderr.write("".join(f"backfill: {line}\n" for line in str(error).splitlines()))
        return BAD_DATA
    for title, counts in (("left out", result.trace.left_out), ("noted", result.trace.noted)):
        if counts:
            sys.stderr.write(f"{title}: {describe_counts(counts.items())}\n")
    sys.stderr.write("".join(f"note: {note}\n" for note in told_early(result.trace)))
    measures = measure(result)
    if args.json:
        sys.stdout.write(json.dumps(as_json(result, measures)) + "\n")
    else:
        sys.stdout.write("\n".join(text_lines(result, measures)) + "\n")
    return OK


def _kept(args: argparse.Namespace) -> Sequence[PoolEntry]:
    if args.reservations is None:
        return ()
    # Imported here, as they know all of a policy file: a bare replay is to start at once.
    from backfill.config.problems import ConfigError
    from backfill.sim.replay.reservation_file import load_kept

    try:
        return load_kept(args.reservations, args.cluster)
    except ConfigError as error:
        raise _InputError(str(error)) from error


def _given(args: argparse.Namespace) -> list[str]:
    """Return the arguments that are not as they would be if nobody had named them."""
    fresh = argparse.ArgumentParser()
    _add_trace_arguments(fresh)
    known = [action.dest for action in fresh._actions if action.dest != "help"]
    return [name for name in known if getattr(args, name) != fresh.get_default(name)]


def _misuse(args: argparse.Namespace, given: Sequence[str]) -> str | None:
    """Say which option is missing or would be ignored, or None."""
    if args.journal is not None:
        if args.policy is None and args.learn is None:
            return "--journal needs --policy FILE, the policy that was in force"
        known, why = (_DAY, "--journal and --last") if args.last else (_JOURNAL, "--journal")
        return _surplus(given, known, f"says nothing with {why}; leave it out")
    if args.trace is None:
        return "name a trace to replay, or a daemon's journal by --journal"
    within = values.window(args)
    if within.from_s is not None and within.to_s is not None and within.from_s >= within.to_s:
        return "--to is not after --from; give a later one"
    if args.policy is not None:
        wrong = next((_NOT_WITH_POLICY[name] for name in given if name in _NOT_WITH_POLICY), None)
        wrong = wrong or _contradiction(args, given)
    else:
        why = "needs --policy FILE: without one there are neither nodes nor instances"
        wrong = _surplus([name for name in given if name != "learn"], _BARE, why)
        if not wrong and "learn" in given:
            wrong = _NOT_WITH_POLICY["learn"]
    if not wrong and args.cluster is None and there(located(args.trace)):
        return "a trace needs --cluster NODESxCPUS, for example --cluster 128x1"
    return wrong


def _contradiction(args: argparse.Namespace, given: Sequence[str]) -> str | None:
    """Say what does not go together with a policy, or None."""
    if "save_takes" in given and "saves_every" not in given:
        return "--save-takes needs --saves-every TIME, how often they save themselves"
    if "seeds" in given and "shake" in given:
        return "--seeds and --shake both say how often to repeat; give one, --shake draws anew too"
    return None


def _surplus(given: Sequence[str], known: frozenset[str], why: str) -> str | None:
    first = next((name for name in given if name not in known), "")
    if first == "trace":
        return "give either --journal or a trace, not both"
    return f"--{first.replace('_', '-')} {why}" if first else None


_OF_TRACES = "goes with a trace; leave it out: a scenario names its hosts, jobs and costs itself"


def add_scenario_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the demo's arguments, but that no report is written unasked."""
    parser.add_argument("--live", action="store_true", help=_LIVE_HELP)
    # Imported here: a bare replay is to start at once.
    from backfill.ui.commands import demo

    demo.add_play_arguments(parser)
    parser.add_argument("--report", type=Path, metavar="OUT.html", help="write a page with the timelines")
    if isinstance(parser, Parser):
        of_traces = argparse.ArgumentParser()
        _add_trace_arguments(of_traces)
        names = (name for action in of_traces._actions for name in action.option_strings)
        parser.elsewhere = dict.fromkeys(names, _OF_TRACES)


def run_scenario(args: argparse.Namespace) -> int:
    """Play it."""
    from backfill.ui.commands.demo import run_demo

    return run_demo(args)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command by itself."""
    parser = Parser(prog="backfill replay", description=__doc__)
    _add_trace_arguments(parser)
    return run_replay(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
