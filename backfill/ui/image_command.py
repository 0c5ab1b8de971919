"""`backfill image`: build the guest image from its recipe, and verify one against its checksums."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from backfill.lab import image
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
        verb.add_argument("--salt", action="store_true", help="the image with Salt baked in")
        verb.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Build or verify."""
    try:
        return _build(args) if args.verb == "build" else _verify(args)
    except LabError as error:
        say(str(error))
        return NO


def _build(args: argparse.Namespace) -> int:
    built = image.build(_tell, salt=args.salt)
    folder = Path(built.disk).parent
    if args.json:
        print(json.dumps({**asdict(built), "recipe": folder.name}))
    else:
        print(f"{folder}: kernel, initrd, disk, checksums, packages.lock")
    return OK


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _verify(args: argparse.Namespace) -> int:
    found = image.find(args.salt)
    if found is None:
        verb = "build --salt" if args.salt else "build"
        raise LabError(
            f"there is no image of the present recipe; build it with: backfill image {verb}"
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
