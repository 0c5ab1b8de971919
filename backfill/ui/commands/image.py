"""`backfill image` builds guest images, a lab's and a site's, verifies them, and looks into others."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from backfill.lab import debian, image, roots
from backfill.lab.lookinto import FlawWeight, look_into
from backfill.lab.siteimage.build import build, check_place, put
from backfill.lab.siteimage.recipe import BUILDS, SiteRecipe, Users, site_files, source_text
from backfill.lab.spec import LabError, LabMisuseError, LabPermissionError
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, OK, USAGE, add_verbs, say

_VERBS = {
    "build": "build an image, or find it in the cache",
    "verify": "compare an image with its checksums",
    "check": "examine an image of your own: what it lacks, and what could make a user root",
}
_LAB, _SITE = "lab", "site"
# Options of one profile, by their names in the arguments.
_OF_LAB, _OF_SITE = (
    ("slurm", "salt", "condor", "mpi"),
    ("release", "users", "etc", "package", "source", "fresh", "output"),
)


def add_image_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill image`."""
    made = add_verbs(parser, _VERBS)
    for verb in made.values():
        verb.add_argument("--json", action="store_true", help="print one JSON document")
    for verb in (made["build"], made["verify"]):
        verb.add_argument(
            "--slurm", choices=roots.RELEASES, help=f"a lab's: the release of its slurmd ({roots.INSTALLED})"
        )
        verb.add_argument("--salt", action="store_true", help="a lab's: with Salt")
        verb.add_argument("--condor", action="store_true", help="a lab's: with HTCondor for pilots")
        verb.add_argument("--mpi", action="store_true", help="a lab's: with Open MPI and hpcc")
    made["check"].add_argument(
        "disk", metavar="DISK", type=Path, help="its disk, or the folder with a disk.raw; neither is changed"
    )
    made["verify"].add_argument(
        "folder", nargs="?", metavar="FOLDER", type=Path, help="a built image (the lab's)"
    )
    _add_site_arguments(made["build"])


def _add_site_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--profile",
        choices=(_LAB, _SITE),
        default=_LAB,
        help="lab: as small and fast as possible, without users; site: systemd and the site's users",
    )
    verb.add_argument("--release", choices=BUILDS, help=f"a site's: Debian's release ({debian.OWN})")
    verb.add_argument(
        "--users",
        choices=[users.value for users in Users],
        help="a site's: from copies of passwd and group (files), or from a directory service by "
        "the site's sssd.conf (sssd)",
    )
    verb.add_argument(
        "--from",
        dest="etc",
        metavar="DIR",
        type=Path,
        help="a site's: where passwd, group, hosts, resolv.conf and sssd/sssd.conf are (/etc)",
    )
    verb.add_argument(
        "--package",
        action="append",
        metavar="NAME",
        help="a site's: an additional Debian package; repeatable",
    )
    verb.add_argument(
        "--source",
        action="append",
        metavar="LINE_OR_FILE",
        help="a site's: a source of apt's to take packages from beside Debian's; repeatable",
    )
    verb.add_argument(
        "--fresh",
        action="store_true",
        help="a site's: build it from today's packages, even if the cache has one of this recipe",
    )
    verb.add_argument(
        "--output", metavar="FOLDER", type=Path, help="a site's: the new folder for it, visible to the hosts"
    )


def run_image(args: argparse.Namespace) -> int:
    """Build or verify."""
    try:
        if args.verb == "verify":
            return _verify(args)
        if args.verb == "check":
            return _check(args)
        _refuse_strangers(args)
        return _build(args)
    except LabMisuseError as error:
        say(str(error))
        return USAGE
    except LabPermissionError as error:
        say(str(error))
        return NO_PERMISSION
    except LabError as error:
        say(str(error))
        return BAD_DATA if args.verb == "check" else NO  # whose 1 tells of flaws


def _refuse_strangers(args: argparse.Namespace) -> None:
    others, profile = (_OF_SITE, _SITE) if args.profile == _LAB else (_OF_LAB, _LAB)
    for name in others:
        if getattr(args, name):
            option = "from" if name == "etc" else name
            raise LabMisuseError(f"--{option} is for --profile {profile}; leave it out, or say that profile")


def _build(args: argparse.Namespace) -> int:
    built = _build_site(args) if args.profile == _SITE else image.build(_tell, _recipe(args))
    folder = Path(built.disk).parent
    if args.json:
        print(json.dumps({**asdict(built), "recipe": folder.name}))
    else:
        print(f"{folder}: kernel, initrd, disk, checksums, packages.lock")
    return OK


def _recipe(args: argparse.Namespace) -> image.Recipe:
    return image.Recipe(args.slurm or roots.INSTALLED, args.salt, args.condor, args.mpi)


def _build_site(args: argparse.Namespace) -> image.GuestImage:
    users = Users(args.users or Users.FILES)
    if args.output is not None:
        check_place(args.output.absolute())
    recipe = SiteRecipe(
        suite=args.release or debian.OWN,
        users=users,
        packages=tuple(args.package or ()),
        sources=tuple(source_text(said) for said in args.source or ()),
        site=site_files(args.etc or Path("/etc"), users),
    )
    built = build(recipe, _tell, fresh=args.fresh)
    return put(built, args.output.absolute()) if args.output is not None else built


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _verify(args: argparse.Namespace) -> int:
    folder = args.folder or _folder_of_the_labs(args)
    problems = image.problems(folder)
    if args.json:
        print(json.dumps({"folder": str(folder), "problems": problems}))
    for problem in problems if not args.json else ():
        print(problem)
    if not problems and not args.json:
        print(f"{folder}: every part is as it was built")
    return BAD_DATA if problems else OK


def _check(args: argparse.Namespace) -> int:
    disk = args.disk / "disk.raw" if args.disk.is_dir() else args.disk
    flaws = look_into(disk)
    if args.json:
        print(json.dumps({"disk": str(disk), "flaws": [asdict(flaw) for flaw in flaws]}))
    for flaw in flaws if not args.json else ():
        print(f"{flaw.weight.value}: {flaw.what}\n  why:  {flaw.why}\n  mend: {flaw.mend}")
    if not flaws and not args.json:
        print(f"{disk} has all that an instance needs; whether it boots shows: backfill doctor --boot")
    return NO if any(flaw.weight is not FlawWeight.ADVICE for flaw in flaws) else OK


def _folder_of_the_labs(args: argparse.Namespace) -> Path:
    found = image.find(_recipe(args))
    if found is None:
        which = [
            *(["--slurm", args.slurm] if args.slurm else []),
            *(["--salt"] if args.salt else []),
            *(["--condor"] if args.condor else []),
            *(["--mpi"] if args.mpi else []),
        ]
        raise LabError(
            "there is no image of the present recipe; build it with: "
            + " ".join(["backfill image build", *which])
        )
    return Path(found.disk).parent
