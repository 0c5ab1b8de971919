"""The measures follow their published definitions."""

from __future__ import annotations

import pytest

from backfill.core.learning import Habits
from backfill.sim.replay.measures import (
    Eviction,
    Harvest,
    bounded_slowdown,
    distribution,
    eviction_measures,
    job_measures,
    paired_delay,
    per_processor_bounded_slowdown,
    percentile,
)


@pytest.mark.parametrize(
    ("wait_s", "run_s", "expected"), [(0, 100, 1), (100, 100, 2), (90, 1, 9.1), (2, 1, 1)]
)
def test_bounded_slowdown(wait_s: float, run_s: float, expected: float) -> None:
    """Run times below 10 s count as 10 s, and nothing is below 1."""
    assert bounded_slowdown(wait_s, run_s) == pytest.approx(expected)


def test_per_processor_bounded_slowdown() -> None:
    """A wait is spread over the processors, never below 1."""
    assert per_processor_bounded_slowdown(700, 100, 4) == 2
    assert per_processor_bounded_slowdown(0, 100, 4) == 1


def test_percentiles_are_nearest_ranks() -> None:
    """A percentile is one of the values: the smallest that enough values do not exceed."""
    values = [float(value) for value in range(1, 11)]
    assert [percentile(values, p) for p in (0, 10, 50, 51, 90, 99, 100)] == [1, 1, 5, 6, 9, 10, 10]


def test_a_distribution_of_nothing_is_zero() -> None:
    """An empty set has no mean to divide for."""
    assert distribution([]) == distribution(iter(()))
    assert distribution([]).count == 0
    assert distribution([]).maximum == 0.0


def test_job_measures() -> None:
    """Two jobs on two processors: waits, makespan and utilisation by hand."""
    measures = job_measures([0, 10], [0, 20], [20, 40], [2, 1], capacity=2)
    assert measures.jobs == 2
    assert (measures.wait_s.mean, measures.wait_s.maximum) == (5, 10)
    assert measures.turnaround_s.mean == 35
    assert measures.bounded_slowdown.maximum == 1.25
    assert measures.makespan_s == 60
    assert measures.core_h == pytest.approx(80 / 3600)
    assert measures.utilisation == pytest.approx(80 / 120)


def test_job_measures_of_no_job() -> None:
    """An empty trace has neither makespan nor utilisation."""
    measures = job_measures([], [], [], [], capacity=4)
    assert (measures.jobs, measures.makespan_s, measures.utilisation) == (0, 0, 0.0)


def test_harvest_shares() -> None:
    """Of 1000 core seconds 600 are high-priority work; 200 of the 400 idle become goodput."""
    harvest = Harvest(1000, 600, goodput_core_s=200, badput_core_s=50, overhead_core_s=150)
    assert harvest.idle_core_s == 400
    assert harvest.high_utilisation == 0.6
    assert harvest.total_utilisation == 0.85
    assert harvest.harvested_fraction == 0.5
    assert harvest.goodput_share == 0.5
    assert harvest.lost_core_h == pytest.approx(50 / 3600)


def test_harvest_of_a_full_machine() -> None:
    """Where nothing was idle, nothing was harvested: shares of nothing are 0."""
    harvest = Harvest(100, 100, 0, 0, 0)
    assert (harvest.harvested_fraction, harvest.goodput_share) == (0.0, 0.0)


def test_evictions_by_rung() -> None:
    """Preemptions are counted by rung, and the time to free room is measured."""
    measures = eviction_measures(
        [Eviction("requeue", 0, 30), Eviction("pause", 10, 10.5), Eviction("pause", 20, 21.5)]
    )
    assert dict(measures.by_rung) == {"pause": 2, "requeue": 1}
    assert (measures.vacate_s.median, measures.vacate_s.maximum) == (1.5, 30)


def test_paired_delay_compares_job_by_job() -> None:
    """Only jobs of both runs are compared; an earlier start is a negative delay."""
    delay = paired_delay({"a": 10, "b": 20, "c": 30}, {"a": 15, "b": 18, "d": 1})
    assert (delay.delay_s.count, delay.delay_s.mean, delay.delay_s.maximum) == (2, 1.5, 5)
    assert (delay.delayed, delay.unpaired) == (1, 2)


def test_habits_of_an_owner_whose_jobs_are_known() -> None:
    """A quarter of the latest 16 jobs did not exceed the first share, nine in ten not the second."""
    habits = Habits()
    for percent in (99, *range(1, 17)):
        habits.learn("known", percent, 100.0)
    assert habits.shares("known") == (0.04, 0.15)
    habits.learn("known", 500.0, 100.0)
    assert habits.shares("known") == (0.05, 0.16)


def test_habits_of_all_stand_for_those_of_an_owner_who_is_new() -> None:
    """Until three of that one's jobs are known; of fewer than three of all nothing is said."""
    habits = Habits()
    for percent in (10, 20):
        habits.learn("known", percent, 100.0)
    assert habits.shares("known") is habits.shares("new") is None
    habits.learn("new", 90.0, 100.0)
    assert habits.shares("new") == habits.shares("known") == (0.1, 0.9)
    habits.learn("new", 80.0, 100.0)
    habits.learn("new", 70.0, 100.0)
    assert habits.shares("new") == (0.7, 0.9)
