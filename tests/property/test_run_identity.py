"""A fixed part of the cycles that `make days` lives by the thousand."""

from __future__ import annotations

import pytest

from backfill.core.world import World
from tests.property.run_identity import live


def test_no_report_of_an_old_run_is_taken_for_the_new_one() -> None:
    """Late outcomes, readings and hooks of all former runs, while a job waits and while it runs."""
    lived = live(96, hosts=4)
    assert lived.cycles == 96
    assert lived.reports > 500
    assert lived.wrong == []


def test_who_takes_old_readings_for_new_ones_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test itself has teeth: a world that believes whatever comes last is told apart."""
    monkeypatch.setattr(World, "_newer", lambda self, kind, name, seen_s: True)
    assert [text for text in live(16, hosts=2).wrong if "is believed to run" in text]
