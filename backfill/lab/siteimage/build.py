"""Builds a site's guest image, and puts it where a site wants it."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import tempfile
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

from backfill.lab import debian, guestroot, image
from backfill.lab.image import GuestImage, Progress
from backfill.lab.siteimage import people, root
from backfill.lab.siteimage.recipe import DISK_MB, SiteRecipe
from backfill.lab.spec import LabError


def name_of(recipe: SiteRecipe) -> str:
    """Return the image's folder in the cache: another one for each change of what goes into it."""
    sources = [inspect.getsource(part) for part in (people, root, image.pack)]
    return f"site-{recipe.suite}-{recipe.digest(*sources)}"


def build(recipe: SiteRecipe, progress: Progress = lambda line: None, *, fresh: bool = False) -> GuestImage:
    """Return the newest image of this recipe, made where the cache has none, or anew if `fresh`; needs root.

    LabError: something that it takes is missing, which is told before any work; or a step failed.
    """
    began_s, made = time.monotonic(), list[Path]()

    def step(text: str) -> None:
        progress(f"site image of Slurm {recipe.release}: {text} ({time.monotonic() - began_s:.0f} s)")

    def make(work: Path, target: Path) -> GuestImage:
        made.append(target)
        tree = work / "root"
        step(f"installing packages of Debian {recipe.suite}")
        _install(recipe, tree, work)
        step("adding programs, units and users")
        guestroot.add_programs(tree)
        root.make_site_guest(tree, recipe)
        described = GuestImage(
            kernel=str(target / "vmlinuz"),
            initrd=str(target / "initrd"),
            disk=str(target / "disk.raw"),
            cmdline=recipe.cmdline,
            emulated=recipe.emulated,
        )
        return image.pack(work, target, described, DISK_MB, step)

    found = image.cached_or_built(_place_of(name_of(recipe), fresh=fresh), make)
    if not made:
        day = datetime.fromtimestamp((Path(found.disk).parent / "image.json").stat().st_mtime, UTC)
        step(f"from the cache, built on {day:%Y-%m-%d}; --fresh builds it from today's packages")
    return found


def _place_of(name: str, *, fresh: bool) -> str:
    """Return the folder of the recipe's newest image, or of the next: disks may lean on those that are there.

    The first has the recipe's own name, those after it a number behind that.
    """
    built = image.image_folder().glob(f"{name}*/image.json")
    ends = [path.parent.name.removeprefix(name) for path in built]
    newest = max((int(end[1:] or 1) for end in ends if re.fullmatch(r"(-\d+)?", end)), default=0)
    number = newest + 1 if fresh else max(newest, 1)
    return name if number == 1 else f"{name}-{number}"


def _install(recipe: SiteRecipe, tree: Path, work: Path) -> None:
    """Install Debian with its updates as they are now, a kernel included; `work` has room for the log."""
    sources = list(debian.archive(recipe.suite))
    if recipe.sources and not sources:
        raise LabError(
            f"apt has no source of Debian's: name one of {recipe.suite} in /etc/apt, beside --source"
        )
    for number, text in enumerate(recipe.sources):
        file = work / f"source-{number}"
        file.write_text(f"{text.rstrip()}\n")
        sources.append(str(file))
    # Nothing in the guest uses Debian's own initrd, so its generator is told to do nothing.
    settings = '"$1/etc/initramfs-tools"'
    quiet = f"mkdir -p {settings} && echo update_initramfs=no >{settings}/update-initramfs.conf"
    how = (
        *debian.options(recipe.suite, "man", "doc", "locale", "info", "lintian", "bug"),
        "--dpkgopt=force-confold",
        f"--essential-hook={quiet}",
    )
    debian.install(recipe.suite, recipe.all_packages, how, tree, work / "mmdebstrap.log", sources)


def check_place(folder: Path) -> None:
    """Raise LabError where no image can be put into the folder: one that is there may be in use."""
    if folder.exists():
        raise LabError(
            f"{folder} is there already, and disks of instances may lean on it; name a new folder by --output"
        )
    if not folder.parent.is_dir():
        raise LabError(f"{folder.parent} is not there; make it, or name another folder by --output")


def put(built: GuestImage, folder: Path) -> GuestImage:
    """Copy an image to a new folder, whole or not at all; returns it as it is there.

    LabError: the folder is there already, it cannot be written, or the copy is not what was built.
    """
    check_place(folder)
    there = replace(
        built, **{key: str(folder / Path(getattr(built, key)).name) for key in ("kernel", "initrd", "disk")}
    )
    source = Path(built.disk).parent
    try:
        # A place of its own: somebody else may build one for the same folder.
        partial = tempfile.TemporaryDirectory(prefix=f".{folder.name}.partial-", dir=folder.parent)
        with image.open_to_all(), partial as work:
            copy = Path(work) / folder.name
            _copy(source, copy)
            (copy / "image.json").write_text(json.dumps(asdict(there), indent=2) + "\n")
            if image.problems(copy):
                raise LabError(
                    f"what was copied to {folder} is not what was built; see whether that is sound by: "
                    f"backfill image verify {source}"
                )
            _sync(*copy.iterdir(), copy)
            check_place(folder)
            copy.rename(folder)
            _sync(folder.parent)
    except OSError as error:
        raise LabError(
            f"the image cannot be put into {folder}: {error.strerror}; mend that, or name another by --output"
        ) from error
    return there


def _copy(source: Path, target: Path) -> None:
    # Holes stay holes: most of a disk is none of the network's business.
    how = ("--recursive", "--no-preserve=mode", "--sparse=always", "--reflink=auto")
    argv = ["cp", *how, str(source), str(target)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"the image cannot be copied to {target.name}: {done.stderr.strip()}")


def _sync(*paths: Path) -> None:
    """Wait until files and folders are on the disk."""
    for path in paths:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
