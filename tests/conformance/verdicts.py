"""What a run of a suite said of each test, read from pytest's JUnit file, and how two runs differ."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


class Verdict(Enum):
    """What became of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Told:
    """The verdict on one test, with the first line of what was said of it."""

    verdict: Verdict
    why: str = ""


def read(path: Path) -> dict[str, Told]:
    """Return the verdict on each test by file and name; an error in its set-up counts as a failure."""
    found: dict[str, Told] = {}
    for case in ET.parse(path).getroot().iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        told = _told(case)
        # A test that passes and fails when it is cleared up comes twice.
        if name not in found or told.verdict is Verdict.FAILED:
            found[name] = told
    return found


def _told(case: ET.Element) -> Told:
    for kind, verdict in (
        ("failure", Verdict.FAILED),
        ("error", Verdict.FAILED),
        ("skipped", Verdict.SKIPPED),
    ):
        part = case.find(kind)
        if part is not None:
            why = part.get("message") or part.text or ""
            return Told(verdict, why.strip().split("\n")[0])
    return Told(Verdict.PASSED)


def counted(told: Mapping[str, Told]) -> str:
    """Return how many of each, in words."""
    numbers = Counter(one.verdict for one in told.values())
    return ", ".join(f"{numbers[verdict]} {verdict.value}" for verdict in Verdict)


def differences(bare: Mapping[str, Told], virtual: Mapping[str, Told]) -> dict[str, tuple[Told, Told]]:
    """Return the tests on which the two disagree, by name; one that was not run counts as skipped."""
    none = Told(Verdict.SKIPPED, "it was not run")
    pairs = {name: (bare.get(name, none), virtual.get(name, none)) for name in sorted({*bare, *virtual})}
    return {name: pair for name, pair in pairs.items() if pair[0].verdict is not pair[1].verdict}


def worse(pairs: Mapping[str, tuple[Told, Told]]) -> list[str]:
    """Return the names of those that fail on virtual nodes alone."""
    return [name for name, (_, virtual) in pairs.items() if virtual.verdict is Verdict.FAILED]
