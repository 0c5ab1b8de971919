"""An image's parts are held to the checksums that were written when it was built."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.lab import image, saltimage
from backfill.lab.spec import LabSpec

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


def test_the_two_images_have_different_recipes() -> None:
    """With Salt it is another image, so neither takes the other's place in the cache."""
    assert image.recipe_hash(salt=True) != image.recipe_hash()


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
    assert said in problem
    assert bool(problem) == bool(said)


def test_a_lab_knows_its_extras_after_a_round_trip() -> None:
    spec = LabSpec(time=True, files=True, salt=True)
    assert LabSpec.from_json(spec.to_json()) == spec
