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
from backfill.ui.outfile import OutputError, write_text
from backfill.ui.parser import BAD_DATA, OK, USAGE, Parser, say

_MEAN_GAP_S = 10.0
_OF_MODELS = {"load": ("lublin", "lublin-typed"), "mean_gap_s": ("poisson", "htc"), "backlog": ("htc",)}


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments that `run_workload` needs."""
    parser.add_argument("model", choices=tuple(MODELS), help="the model to draw from")
    parser.add_argument("--jobs", type=_whole, default=10_000, help="how many (10000)")
    parser.add_argument("--processors", type=_whole, default=256, help="the machine's processors (256)")
    parser.add_argument("--seed", type=int, default=1, help="same seed, same jobs")
    parser.add_argument("--load", type=_positive, help="lublin: work offered, 1 = the machine")
    parser.add_argument("--mean-gap-s", type=_positive, help="poisson, htc: time between arrivals (10)")
    parser.add_argument("--backlog", type=_natural, help="htc: jobs waiting at time 0 (0)")
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
    jobs = MODELS[args.model](args)
    if args.estimate_factor is not None:
        jobs = with_estimates(jobs, args.seed, args.estimate_factor)
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


def _whole(text: str, least: int = 1) -> int:
    if not text.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number; give one from {least} on")
    if int(text) < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}; give at least {least}")
    return int(text)


def _natural(text: str) -> int:
    return _whole(text, 0)


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
