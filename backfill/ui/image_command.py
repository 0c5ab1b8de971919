"""`backfill image`: build the guest image from its recipe, and verify one against its checksums."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from backfill.lab import image, roots
from backfill.lab.spec import LabError
from backfill.ui.codes import BAD_DATA, NO, OK
from backfill.ui.parser import add_verbs, say

_VERBS = {
    "build": "build the image of the present recipe, or find it",
    "verify": "compare an image with its checksums and with the present recipe",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill image`."""
    for verb in add_verbs(parser, _VERBS).values():
        verb.add_argument(
            "--slurm",
            default=roots.INSTALLED,
            choices=roots.RELEASES,
            help=f"release of its slurmd ({roots.INSTALLED})",
        )
        verb.add_argument("--salt", action="store_true", help="the image with Salt baked in")
        verb.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Build or verify."""
    try:
        recipe = image.Recipe(args.slurm, args.salt)
        return _build(args, recipe) if args.verb == "build" else _verify(args, recipe)
    except LabError as error:
        say(str(error))
        return NO


def _build(args: argparse.Namespace, recipe: image.Recipe) -> int:
    built = image.build(_tell, recipe)
    folder = Path(built.disk).parent
    if args.json:
        print(json.dumps({**asdict(built), "recipe": folder.name}))
    else:
        print(f"{folder}: kernel, initrd, disk, checksums, packages.lock")
    return OK


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _verify(args: argparse.Namespace, recipe: image.Recipe) -> int:
    found = image.find(recipe)
    if found is None:
        which = [
            *(["--slurm", args.slurm] if args.slurm != roots.INSTALLED else []),
            *(["--salt"] if args.salt else []),
        ]
        raise LabError(
            "there is no image of the present recipe; build it with: "
            + " ".join(["backfill image build", *which])
        )
    folder = Path(found.disk).parent
    problems = image.problems(folder)
    if args.json:
        print(json.dumps({"folder": str(folder), "problems": problems}))
    for problem in problems if not args.json else ():
        print(problem)
    if not problems and not args.json:
        print(f"{folder}: every part is as it was built")
    return BAD_DATA if problems else OK
