"""Builds a site's guest image, and puts it where a site wants it."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

from backfill.lab import guestroot, image
from backfill.lab.image import GuestImage, Progress
from backfill.lab.siteimage import people, root
from backfill.lab.siteimage.recipe import DISK_MB, SiteRecipe
from backfill.lab.spec import LabError


def name_of(recipe: SiteRecipe) -> str:
    """Return the image's folder in the cache: another one for each change of what goes into it."""
    sources = [inspect.getsource(part) for part in (people, root, image.pack)]
    return f"site-{recipe.suite}-{recipe.digest(*sources)}"


def build(recipe: SiteRecipe, progress: Progress = lambda line: None) -> GuestImage:
    """Return the image of this recipe, made anew where the cache has none; needs root.

    LabError: something that it takes is missing, which is told before any work; or a step failed.
    """

    def make(work: Path, target: Path) -> GuestImage:
        began_s = time.monotonic()

        def step(text: str) -> None:
            progress(f"site image of Slurm {recipe.release}: {text} ({time.monotonic() - began_s:.0f} s)")

        tree = work / "root"
        step(f"installing packages of Debian {recipe.suite}")
        guestroot.install_packages(tree, work / "mmdebstrap.log", recipe.suite, recipe.all_packages)
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

    return image.cached_or_built(name_of(recipe), make)


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

    LabError: the folder is there already, or it cannot be written.
    """
    check_place(folder)
    work = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(work, ignore_errors=True)
    source = Path(built.disk).parent
    # Holes stay holes: most of a disk is none of the network's business.
    argv = ["cp", "--recursive", "--sparse=always", "--reflink=auto", str(source), str(work)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(work, ignore_errors=True)
        raise LabError(f"the image cannot be copied to {folder}: {done.stderr.strip()}")
    there = replace(
        built, **{key: str(folder / Path(getattr(built, key)).name) for key in ("kernel", "initrd", "disk")}
    )
    (work / "image.json").write_text(json.dumps(asdict(there), indent=2) + "\n")
    work.rename(folder)
    return there
