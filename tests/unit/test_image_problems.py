"""An image's parts are held to the checksums that were written when it was built."""

from __future__ import annotations

import lzma
import re
from pathlib import Path

import pytest

from backfill.lab import guestroot, image, saltimage
from backfill.lab.roots import RELEASES
from backfill.lab.spec import LabError, LabSpec

PARTS = ("vmlinuz", "initrd", "disk.raw", "packages.lock")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in PARTS:
        (tmp_path / part).write_text(f"{part}\n")
    (tmp_path / "checksums").write_text(image.checksums(tmp_path))
    return tmp_path


def test_an_untouched_image_has_no_problem(folder: Path) -> None:
    assert image.problems(folder) == []


@pytest.mark.parametrize("part", PARTS)
def test_each_part_is_watched(folder: Path, part: str) -> None:
    """A changed or missing part is named, with what to do."""
    (folder / part).write_text("something else")
    (said,) = image.problems(folder)
    assert said == f"{folder / part} is not what was built; remove {folder} and build it again"
    (folder / part).unlink()
    assert "is missing" in image.problems(folder)[0]


def test_an_image_without_checksums_is_no_image(folder: Path) -> None:
    (folder / "checksums").unlink()
    assert "has no checksums" in image.problems(folder)[0]


def test_each_image_has_a_name_of_its_own() -> None:
    """With Salt or of another release it is another image: none takes another's place."""
    recipes = [image.Recipe(salt=True), *(image.Recipe(release) for release in RELEASES)]
    assert len({recipe.name for recipe in recipes}) == 4
    assert all(recipe.name.startswith(f"{recipe.release}-") for recipe in recipes)


@pytest.mark.parametrize(
    ("release", "salt", "said"),
    [
        ("23.02", False, "no guest image has Slurm 23.02; there are 22.05, 24.11, 26.05"),
        ("24.11", True, "Salt is baked into the guest image of Slurm 22.05 only"),
    ],
)
def test_an_image_that_cannot_be_is_refused(release: str, salt: bool, said: str) -> None:
    """One sentence, before anything is begun."""
    with pytest.raises(LabError, match=re.escape(said)):
        image.Recipe(release, salt)


def test_packed_modules_are_unpacked_for_the_initial_ram_disk(tmp_path: Path) -> None:
    """Later kernels of Debian have theirs packed."""
    (tmp_path / "a.ko").write_bytes(b"plain")
    (tmp_path / "b.ko.xz").write_bytes(lzma.compress(b"packed"))
    assert guestroot._unpacked(tmp_path / "a.ko") == b"plain"
    assert guestroot._unpacked(tmp_path / "b.ko.xz") == b"packed"


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("", "Salt printed"),
        ('{"local": ["bad sls"]}', "bad sls"),
        ('{"local": {}}', "instead of states"),
        ('{"local": {"x": {"__id__": "y", "result": false, "comment": "no"}}}', "y: no"),
        ('{"local": {"x": {"result": true}}}', ""),
    ],
)
def test_only_a_success_counts_as_one(output: str, said: str) -> None:
    """What Salt prints is a success only as a dictionary of states of which none failed."""
    problem = saltimage.verdict(output)
    assert said in (problem or "")
    assert bool(problem) == bool(said)


def test_a_lab_knows_its_extras_after_a_round_trip() -> None:
    spec = LabSpec(time=True, files=True, salt=True)
    assert LabSpec.from_json(spec.to_json()) == spec


def test_half_a_list_of_checksums_and_a_part_that_cannot_be_read_are_sentences(folder: Path) -> None:
    """An image that was copied by half is told like one that was changed, without a traceback."""
    whole = (folder / "checksums").read_text()
    (folder / "checksums").write_text(whole[: len(whole) // 2])
    assert all("is not what was built" in line for line in image.problems(folder))
    assert image.problems(folder)
    (folder / "initrd").unlink()
    (folder / "initrd").mkdir()
    (said,) = image.problems(folder)
    assert said.endswith("cannot be read: Is a directory; run this as root")
