"""`backfill image` builds the guest image; `backfill images` checks those of a policy file."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import asdict
from pathlib import Path

from backfill.config import ConfigError, load
from backfill.config.images import ImageEntry
from backfill.config.model import Config
from backfill.lab import image, roots
from backfill.lab.spec import LabError
from backfill.ui.client import print_json
from backfill.ui.parser import BAD_DATA, NO, OK, add_verbs, say

_IMAGE_VERBS = {
    "build": "build the image of the present recipe, or find it",
    "verify": "compare an image with its checksums and with the present recipe",
}


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill image`."""
    for verb in add_verbs(parser, _IMAGE_VERBS).values():
        verb.add_argument(
            "--slurm",
            default=roots.INSTALLED,
            choices=roots.RELEASES,
            help=f"release of its slurmd ({roots.INSTALLED})",
        )
        verb.add_argument("--salt", action="store_true", help="the image with Salt baked in")
        verb.add_argument("--json", action="store_true", help="print one JSON document")


def run_image(args: argparse.Namespace) -> int:
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


_IMAGES_VERBS = {
    "list": "show images, who may ask for them and by which constraint",
    "check": "compare their files with what the policy file promises",
}


def add_images_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill images`."""
    for verb in add_verbs(parser, _IMAGES_VERBS).values():
        verb.add_argument("--config", required=True, metavar="FILE", help="the policy file")
        verb.add_argument("--json", action="store_true", help="print the answer as JSON")


def run_images(args: argparse.Namespace) -> int:
    """Read the policy file; `check` reads the images as well."""
    try:
        config = load(args.config)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return BAD_DATA
    shown = [_image(config, name, entry) for name, entry in sorted(_images(config).items())]
    problems = 0
    for one, entry in zip(shown, (e for _, e in sorted(_images(config).items())), strict=True):
        if args.verb == "check":
            one["problem"] = _problem(entry)
            problems += bool(one["problem"])
    if args.json:
        print_json({"images": shown})
    else:
        for one in shown:
            print(_line(one))
    return NO if problems else OK


def _images(config: Config) -> dict[str, ImageEntry]:
    return config.libvirt.images if config.libvirt is not None else {}


def _image(config: Config, name: str, entry: ImageEntry) -> dict[str, object]:
    """One image with the environments that it is."""
    environments = [e for e in config.policies.environments.entries if e.image == name]
    return {
        "name": name,
        "disk": entry.disk,
        "sha256": entry.sha256,
        "default": name == config.policies.instances.image,
        "method": (entry.method or config.policies.cloning.method).value,
        "os_family": entry.os_family,
        "user_data": entry.user_data,
        "names": list(entry.names),
        "most_cpus": entry.most_cpus,
        "most_memory_mb": entry.most_memory_mb,
        "creates_per_min": entry.creates_per_min,
        "warm_parents": entry.warm_parents,
        "environments": [
            {"name": e.name, "users": list(e.users), "accounts": list(e.accounts)} for e in environments
        ],
    }


def _problem(entry: ImageEntry) -> str:
    """Say what is wrong with the image's files, or return an empty text."""
    for path in filter(None, (entry.kernel, entry.initrd, entry.disk, entry.user_data)):
        if not Path(path).is_file():
            return f"{path} is missing"
    if not entry.sha256:
        return ""
    try:
        with open(entry.disk, "rb") as disk:
            found = hashlib.file_digest(disk, "sha256").hexdigest()
    except OSError as error:
        return f"{entry.disk} cannot be read: {error.strerror}"
    if found != entry.sha256.lower():
        return f"{entry.disk} is not what the policy file promises: its SHA-256 is {found}"
    return ""


def _line(image: dict[str, object]) -> str:
    environments = image["environments"]
    assert isinstance(environments, list)
    whose = "; ".join(
        f"{e['name']} for {', '.join([*e['users'], *e['accounts']]) or 'everybody'}" for e in environments
    )
    default = ", default" if image["default"] else ""
    verdict = f": {image['problem'] or 'intact'}" if "problem" in image else ""
    known = "" if image["sha256"] else ", no checksum"
    return f"{image['name']} ({image['method']}{default}{known}) {whose}".rstrip() + verdict
