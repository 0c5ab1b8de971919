"""`backfill workload`: draws a trace from a workload model and writes it as SWF."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from backfill.sim.traces.models import (
    BATCH,
    INTERACTIVE,
    POISSON_SIZES,
    ModelJob,
    htc_pilot,
    lublin,
    poisson,
    with_estimates,
)
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import LARGEST
from backfill.ui.outfile import OutputError, write_text
from backfill.ui.parser import BAD_DATA, OK, USAGE, Parser, say, whole

_MEAN_GAP_S = 10.0
_OF_MODELS = {"load": ("lublin", "lublin-typed"), "mean_gap_s": ("poisson", "htc"), "backlog": ("htc",)}
# What makes times smaller, by the option that made them too large.
_CURES = {
    "mean_gap_s": "a smaller --mean-gap-s",
    "load": "a larger --load",
    "estimate_factor": "a smaller --estimate-factor",
}


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that `run_workload` needs."""
    parser.add_argument("model", choices=tuple(MODELS), help="the model to draw from")
    parser.add_argument("--jobs", type=whole(1), default=10_000, help="how many (10000)")
    parser.add_argument(
        "--processors", type=whole(1, LARGEST), default=256, help="the machine's processors (256)"
    )
    parser.add_argument("--seed", type=int, default=1, help="same seed, same jobs")
    parser.add_argument("--load", type=_positive, help="lublin: work offered, 1 = the machine")
    parser.add_argument("--mean-gap-s", type=_positive, help="poisson, htc: time between arrivals (10)")
    parser.add_argument("--backlog", type=whole(0), help="htc: jobs waiting at time 0 (0)")
    parser.add_argument(
        "--estimate-factor", type=_factor, help="add estimates of up to this times the run time"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE.swf", help="the trace to write"
    )


def run_workload(args: argparse.Namespace) -> int:
    """Draw and write; return the exit status."""
    for option, models in _OF_MODELS.items():
        if getattr(args, option) is not None and args.model not in models:
            name = option.replace("_", "-")
            say(f"--{name} is for {' and '.join(models)}; leave it out for {args.model}")
            return USAGE
    try:
        jobs = _drawn(args)
    except OverflowError:
        cures = [cure for option, cure in _CURES.items() if getattr(args, option) is not None]
        say(f"a time would be above {LARGEST} s, which no trace holds; give {' or '.join(cures)}")
        return USAGE
    header = (
        "Version: 2.2",
        f"Computer: model {args.model}, seed {args.seed}",
        f"MaxJobs: {len(jobs)}",
        f"MaxProcs: {args.processors}",
    )
    try:
        write_text(args.output, swf_lines(jobs, header))
    except OutputError as error:
        say(str(error))
        return BAD_DATA
    return OK


def _drawn(args: argparse.Namespace) -> list[ModelJob]:
    """Draw the jobs. OverflowError: `backfill replay` would refuse one."""
    jobs = MODELS[args.model](args)
    if args.estimate_factor is not None:
        jobs = with_estimates(jobs, args.seed, args.estimate_factor)
    if any(max(job.submit_s, job.estimate_s) > LARGEST for job in jobs):
        raise OverflowError
    return jobs


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command by itself."""
    parser = Parser(prog="backfill workload", description=__doc__)
    add_workload_arguments(parser)
    return run_workload(parser.parse_args(argv))


def _lublin(args: argparse.Namespace) -> list[ModelJob]:
    return lublin(args.seed, args.jobs, args.processors, args.load)


def _lublin_typed(args: argparse.Namespace) -> list[ModelJob]:
    return lublin(args.seed, args.jobs, args.processors, args.load, (BATCH, INTERACTIVE))


def _poisson(args: argparse.Namespace) -> list[ModelJob]:
    sizes = tuple(dict.fromkeys(min(size, args.processors) for size in POISSON_SIZES))
    return poisson(args.seed, args.jobs, args.mean_gap_s or _MEAN_GAP_S, sizes)


def _htc(args: argparse.Namespace) -> list[ModelJob]:
    return htc_pilot(args.seed, args.jobs, args.mean_gap_s or _MEAN_GAP_S, args.backlog or 0)


MODELS: Mapping[str, Callable[[argparse.Namespace], list[ModelJob]]] = {
    "lublin": _lublin,
    "lublin-typed": _lublin_typed,
    "poisson": _poisson,
    "htc": _htc,
}


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0; give a positive number")
    return value


def _factor(text: str) -> float:
    value = _positive(text)
    if value < 1.0:
        raise argparse.ArgumentTypeError(f"{text} is less than 1; an estimate is never below the run time")
    return value


if __name__ == "__main__":
    sys.exit(main())
