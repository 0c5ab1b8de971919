"""Two runs beside one another: a sentence for each difference, none for what is the same."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.sim.replay.measures import Eviction, Harvest, distribution, eviction_measures, paired_delay
from backfill.ui.report.comparison import difference, differences, interval, paired
from backfill.ui.report.figures import FIGURES, Summary, plain
from backfill.ui.report.replay_text import told_time

FIRST = Summary(
    window_s=1000.0,
    harvest=Harvest(36_000_000, 9_000_000, 18_000_000, 3_600_000, 360_000),
    evictions=eviction_measures([Eviction("pause", 1.0, 1.003), Eviction("pause", 2.0, 2.003)]),
    delay=paired_delay({1: 0.0}, {1: 0.5}),
    own_delay_s=distribution([0.02]),
    high_jobs=1,
    low_completed=10,
    low_unfit=0,
    low_attempts_lost=0,
    withdrawn=0,
    saving_core_s=0.0,
    paused_h=1.0,
    steps={"moves": 0},
    refusals={},
    badput_core_s={},
)


def test_every_difference_is_a_sentence_with_a_verdict() -> None:
    """More badput is worse; a share is told in points, an amount in percent."""
    harvest = Harvest(36_000_000, 9_000_000, 9_000_000, 7_200_000, 360_000)
    second = replace(FIRST, harvest=harvest, evictions=eviction_measures([]))
    found = list(differences("a", [FIRST], "b", [second]))
    assert (
        "Badput (lost work): rises from 1000.0 core h with a to 2000.0 core h with b "
        "(+100.0 %), which is worse." in found
    )
    assert (
        "Useful work, share of machine: falls from 75.0 % with a to 50.0 % with b "
        "(-25.0 points), which is worse." in found
    )
    assert "Preemptions by pause: 0 with b, 2 with a." in found
    assert not any(text.startswith("Overhead") for text in found)


def test_what_nobody_has_is_not_compared() -> None:
    """A policy that pushed nothing aside gave no room back in no time; it is no better for that."""
    second = replace(FIRST, evictions=eviction_measures([]))
    found = list(differences("a", [FIRST], "b", [second]))
    assert not any(text.startswith("Room given back") for text in found)
    assert "No instance was pushed aside with b: how fast room was given back cannot be compared." in found
    by = {figure.key: figure for figure in FIGURES}
    assert by["vacate_median_s"].shown(by["vacate_median_s"].of(second)) == "-"
    assert plain(second)["vacate_median_s"] is None
    assert plain(second)["vacate_s"] == dict.fromkeys(("mean", "median", "p90", "p99", "maximum")) | {
        "count": 0
    }
    assert difference(by["vacate_median_s"], [FIRST, FIRST], [second, FIRST]).count == 1


def test_counts_of_several_runs_are_means() -> None:
    """As the sentences are, so that the two fit."""
    more = replace(FIRST, low_completed=13, evictions=eviction_measures([Eviction("pause", 1.0, 1.003)]))
    found = list(differences("a", [FIRST, FIRST], "b", [FIRST, more]))
    assert "Preemptions by pause: 1.5 with b, 2.0 with a." in found
    by = {figure.key: figure for figure in FIGURES}
    assert by["low_completed"].mean([FIRST, more]) == 11.5


def test_no_difference_is_said() -> None:
    """Equal runs get one sentence."""
    assert list(differences("a", [FIRST], "b", [FIRST])) == ["b makes no difference to a on this input."]


def test_every_figure_is_in_the_plain_values() -> None:
    """What people see, programs get too, by unique keys."""
    keys = [figure.key for figure in FIGURES]
    values = plain(FIRST)
    assert len(set(keys)) == len(keys)
    assert values["useful_utilisation"] == 0.75
    assert {*keys, "preemptions_by_rung", "delay_s"} <= values.keys()


def test_several_seeds_say_how_sure_a_difference_is() -> None:
    """Paired run by run: what goes up in every one is sure, what goes up and down is chance."""
    badput = (7_200_000, 7_100_000, 7_300_000, 7_200_000)
    worse = [replace(FIRST, harvest=replace(FIRST.harvest, badput_core_s=b)) for b in badput]
    (said,) = [t for t in differences("a", [FIRST] * 4, "b", worse) if t.startswith("Badput")]
    assert said.endswith("which is worse. Over 4 seeds: +1000.0 ± 36.1 core h.")
    shaken = (0, 7_200_000, 3_600_000, 5_400_000)
    mixed = [replace(FIRST, harvest=replace(FIRST.harvest, badput_core_s=b)) for b in shaken]
    (said,) = [t for t in differences("a", [FIRST] * 4, "b", mixed) if t.startswith("Badput")]
    assert "Over 4 seeds it cannot be told from chance" in said


def test_the_interval_is_students() -> None:
    """Values, and the quantiles, from any table."""
    found = interval([1.0, 2.0, 3.0, 4.0])
    assert found.mean == 2.5
    assert found.half == pytest.approx(3.182 * 1.29099 / 2, rel=1e-3)
    assert found.sure
    assert not interval([-1.0, 1.0, 2.0]).sure
    assert paired([1.0, 1.0], [2.0, 2.0]).sure
    assert not interval([5.0]).sure
    half = interval([0.0] * 20 + [1.0] * 20).half
    assert half == pytest.approx(2.0227 * 0.50637 / 40**0.5, rel=1e-2)


def test_differences_are_shown_as_their_values_are() -> None:
    """With the same digits, their sign and their unit; what would vanish keeps two digits."""
    by = {figure.key: figure for figure in FIGURES}
    assert by["useful_utilisation"].change(-0.038712) == "-3.9 points"
    assert by["badput_core_h"].change(896.83, 36.08) == "+896.8 ± 36.1 core h"
    assert by["badput_core_h"].change(0.012) == "+0.012 core h"
    assert by["useful_utilisation"].change(7.77e-7) == "+0.0 points"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(57.4, "57 s"), (600, "10 min"), (7500, "2 h 5 min"), (86_390, "1 d 0 h"), (9e5, "10 d 10 h")],
)
def test_a_length_of_time_is_told_to_people(seconds: float, told: str) -> None:
    assert told_time(seconds) == told
