"""The command `replay`: a trace on a bare cluster, who starts when, and what that is worth."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from backfill.sim.machine import Cluster
from backfill.sim.replay import SCHEDULERS, TIES, replay
from backfill.sim.summary import as_json, measure, text_lines
from backfill.sim.trace import TraceError, describe_counts
from backfill.sim.tracereader import READERS, read_trace

OK, BAD_INPUT = 0, 2


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that `run_replay_command` needs."""
    parser.add_argument("trace", type=Path, help="SWF (plain, .gz, .zip) or a dump of `sacct -P`")
    parser.add_argument(
        "--cluster",
        type=_cluster,
        required=True,
        metavar="NODESxCPUS",
        help="equal nodes and the processors of each, for example 128x1",
    )
    parser.add_argument("--scheduler", choices=SCHEDULERS, default="easy")
    parser.add_argument(
        "--tie",
        choices=TIES,
        default="batch",
        help="batch: completions, arrivals, then one pass; eventwise: arrivals first, a pass each",
    )
    parser.add_argument("--format", choices=("auto", *READERS), default="auto")
    parser.add_argument(
        "--no-instances", action="store_true", help="replay the bare cluster without instances"
    )
    parser.add_argument(
        "--jobs-csv", type=Path, metavar="OUT", help="write job_id,submit,start,end,processors"
    )
    parser.add_argument("--json", action="store_true", help="print the measures as JSON")


def run_replay_command(args: argparse.Namespace) -> int:
    """Replay and print; return the exit status. What was left out is told on stderr."""
    try:
        trace = read_trace(args.trace, args.format)
        result = replay(trace, args.cluster, args.scheduler, args.tie)
        if args.jobs_csv is not None:
            write_text(args.jobs_csv, result.csv_chunks())
    except TraceError as error:
        sys.stderr.write(f"backfill: {error}\n")
        return BAD_INPUT
    except OSError as error:
        sys.stderr.write(f"backfill: cannot write {args.jobs_csv}: {error.strerror}\n")
        return BAD_INPUT
    for title, counts in (("left out", result.trace.left_out), ("noted", result.trace.noted)):
        if counts:
            sys.stderr.write(f"{title}: {describe_counts(counts.items())}\n")
    measures = measure(result)
    if args.json:
        sys.stdout.write(json.dumps(as_json(result, measures)) + "\n")
    else:
        sys.stdout.write("\n".join(text_lines(result, measures)) + "\n")
    return OK


def write_text(path: Path, chunks: Iterable[str]) -> None:
    """Write a file whole or not at all; a device or pipe is written to directly."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as out:
            out.writelines(chunks)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as out:
            out.writelines(chunks)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command by itself."""
    parser = argparse.ArgumentParser(prog="backfill replay", description=__doc__)
    add_replay_arguments(parser)
    return run_replay_command(parser.parse_args(argv))


def _cluster(text: str) -> Cluster:
    try:
        return Cluster.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


if __name__ == "__main__":
    sys.exit(main())
