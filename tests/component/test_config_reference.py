"""The file's manual and schema come from the code, and so does what the reader accepts."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest

from backfill.config import CallLimits, HardwareEntry, ImageEntry, SurroundingsEntry, json_schema
from backfill.config.problems import Place
from backfill.config.reader import Reader, walk
from backfill.config.reference import reference
from backfill.config.shapes import OneOf, root, section
from backfill.config.tree import Entries, parse
from backfill.core.model.keys import Option, key
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.demand import Demand
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Spread
from backfill.core.policy import PolicySet
from tests.unit.policy_files import ROOT


def test_the_manual_is_up_to_date() -> None:
    """docs/policy.md is what `python -m backfill.config.reference` prints now."""
    again = "run `python -m backfill.config.reference > docs/policy.md`"
    assert (ROOT / "docs/policy.md").read_text(encoding="utf-8") == reference(), again


def test_the_command_prints_the_manual() -> None:
    """The command in the manual's first line works."""
    command = [sys.executable, "-m", "backfill.config.reference"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert printed.stdout == reference()


@pytest.mark.parametrize("make", [Limits, Comeback, Demand, RungRule, Scale, Spread, PolicySet])
def test_every_policy_field_is_a_key(make: type) -> None:
    """Field names are the keys, in the manual and in the file."""
    keys = {one.name for _, one in walk(root(), "")}
    assert {f.name for f in fields(make)} <= keys


def test_every_key_is_in_the_manual() -> None:
    """No key without its row."""
    manual = reference()
    assert [path for path, one in walk(root(), "") if f"`{one.name}`" not in manual] == []


class Colour(Option):
    """For the sample policy below."""

    RED = "red"
    BLUE = "blue", "the cold one"


@dataclass(frozen=True, slots=True)
class NewPolicy:
    """A policy that nobody but this test knows."""

    rest_s: float = key(5.0, "How long it rests.")
    colour: Colour = key(Colour.RED, "what it looks like")
    strict: bool = False
    size_mb: int | None = None


def test_a_new_policy_is_read_without_a_change_of_the_reader() -> None:
    """Units come from names, ranges from defaults, choices from enumerations."""
    tree, flaws = parse("{rest_s: 2m, colour: blue, strict: true, size_mb: 2G}")
    assert isinstance(tree, Entries)
    assert flaws == []
    reader = Reader("f")
    value = reader.read(section(NewPolicy), tree, "new")
    assert value == NewPolicy(120.0, Colour.BLUE, strict=True, size_mb=2048)
    assert reader.problems == []


def test_a_new_policy_is_checked_without_a_change_of_the_reader() -> None:
    """Each wrong value has its sentence."""
    tree, _ = parse("{rest_s: 0, colour: green, strict: yes, size_mb: -1, rest: 3}")
    assert tree is not None
    reader = Reader("f")
    reader.read(section(NewPolicy), tree, "new")
    assert [str(p).partition(" ")[2].partition(";")[0] for p in reader.problems] == [
        "new.rest_s is 0",
        "new.colour is the text 'green'",
        "new.strict is the text 'yes'",
        "new.size_mb is '-1', which is negative",
        "new.rest is not a known key",
    ]


def test_a_key_says_its_meaning_at_its_field() -> None:
    """The manual and the schema have it from there."""
    assert {one.name: one.told for one in section(NewPolicy).keys} == {
        "rest_s": "How long it rests.",
        "colour": "what it looks like",
        "strict": "",
        "size_mb": "",
    }
    assert [colour.meaning for colour in Colour] == ["", "the cold one"]


def test_an_option_is_the_text_that_stands_in_the_file() -> None:
    """What it means is no part of what it is: not when it is compared, written or read again."""
    assert Colour("blue") is Colour.BLUE
    assert (str(Colour.BLUE), json.dumps(Colour.BLUE)) == ("blue", '"blue"')
    assert "blue" in {Colour.BLUE: 1}


def test_every_key_means_something() -> None:
    """By a sentence of its own, by the section below it, or by what its choices mean."""
    silent = [path for path, one in walk(root(), "") if not one.told and not _explained(one.shape)]
    assert silent == []


def _explained(shape: object) -> bool:
    return isinstance(shape, OneOf) and all(isinstance(m, Option) and m.meaning for m in shape.values)


def test_a_type_that_the_file_has_no_form_for_is_the_programmers_error() -> None:
    """It shows at the first reading, not at a site."""
    odd = dataclasses.make_dataclass("Odd", [("z", complex)])
    with pytest.raises(TypeError, match=r"Odd\.z"):
        section(odd)


def test_the_schema_has_every_key_and_is_plain_data() -> None:
    """An editor can complete and check the same keys."""
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert set(schema["properties"]) == {one.name for one in root().keys}
    assert schema["required"] == ["cluster", "priorities", "instances", "hosts"]
    limits = schema["properties"]["limits"]["properties"]
    assert limits["max_instances"]["default"] == Limits().max_instances
    assert limits["max_instances"]["exclusiveMinimum"] == 0


@pytest.mark.parametrize(
    ("ours", "driver"),
    [
        (ImageEntry, "ImageFiles"),
        (SurroundingsEntry, "Surroundings"),
        (HardwareEntry, "Hardware"),
        (CallLimits, "LibvirtLimits"),
    ],
)
def test_the_libvirt_section_has_what_the_driver_wants(ours: type, driver: str) -> None:
    """The file may not import the driver, so this test keeps the two alike."""
    settings = pytest.importorskip("backfill.drivers.libvirt.settings")
    theirs, elsewhere = getattr(settings, driver), {"slots", "slot_mb", "asks", "peers"}  # from `devices`
    told = [f for f in fields(ours) if f.compare]  # what is not compared is the planner's
    asked = [f for f in fields(theirs) if f.name not in elsewhere]
    assert [f.name for f in told] == [f.name for f in asked]
    for mine, other in zip(told, asked, strict=True):
        assert mine.default == other.default, mine.name


def test_a_problem_without_a_place_is_shown_at_the_nearest_key() -> None:
    """A rule about a default points to what the file does have."""
    reader = Reader("f")
    reader.places |= {"a": Place(3, 1), "a.b[2]": Place(5, 7)}
    for path in ("a.b[2].c.d", "a.x", "q[1].z", ""):
        reader.note(None, path, "is odd")
    assert [p.line for p in reader.problems] == [5, 3, 1, 1]
