"""`backfill images` shows and checks the master images of a policy file."""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from backfill.config import ConfigError, load
from backfill.config.images import ImageEntry
from backfill.config.model import Config
from backfill.ui.client import print_json
from backfill.ui.parser import BAD_DATA, NO, OK, add_config, add_verbs

_IMAGES_VERBS = {
    "list": "show images, who may ask for them and by which constraint",
    "check": "compare the images' files with what the policy file promises",
}


def add_images_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill images`."""
    for verb in add_verbs(parser, _IMAGES_VERBS).values():
        add_config(verb)
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
            one["problem"] = _problem(entry) or ""
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
        "own_root_mb": entry.own_root_mb,
        "names": list(entry.names),
        "most_cpus": entry.most_cpus,
        "most_memory_mb": entry.most_memory_mb,
        "creates_per_min": entry.creates_per_min,
        "warm_parents": entry.warm_parents,
        "environments": [
            {"name": e.name, "users": list(e.users), "accounts": list(e.accounts)} for e in environments
        ],
    }


def _problem(entry: ImageEntry) -> str | None:
    """Say what is wrong with the image's files, or None."""
    for path in filter(None, (entry.kernel, entry.initrd, entry.disk, entry.user_data)):
        try:
            if not Path(path).is_file():
                return f"{path} is missing"
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
    if not entry.sha256:
        return None
    try:
        with open(entry.disk, "rb") as disk:
            found = hashlib.file_digest(disk, "sha256").hexdigest()
    except OSError as error:
        return f"{entry.disk} cannot be read: {error.strerror}"
    if found != entry.sha256.lower():
        return f"{entry.disk} is not what the policy file promises: its SHA-256 is {found}"
    return None


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
