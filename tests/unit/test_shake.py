"""Shaken traces: the same jobs, moved a little, the same for the same seed."""

from __future__ import annotations

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.shake import RUN_SHARE, SUBMIT_S, shaken
from tests.unit.harvest_inputs import trace_of


def test_everything_moves_within_its_bounds() -> None:
    """Submit times by a minute, run times by a tenth; estimates still hold; sizes stay."""
    trace = trace_of(ModelJob(100 * i, 1000, 1 + i % 4, 1000 if i % 2 else 1020) for i in range(50))
    moved = shaken(trace, 7)
    assert moved != trace
    assert sorted(moved.processors) == sorted(trace.processors)
    by_id = {moved.job_id[i]: i for i in range(len(moved))}
    for i, job_id in enumerate(trace.job_id):
        j = by_id[job_id]
        assert abs(moved.submit[j] - trace.submit[i]) <= SUBMIT_S
        assert abs(moved.run[j] - trace.run[i]) <= RUN_SHARE * trace.run[i] + 1
        assert moved.run[j] <= moved.estimate[j]
    assert moved.submit[0] == trace.submit[0]


def test_a_seed_is_a_history() -> None:
    """The same seed gives the same trace, another seed another one; queue order holds."""
    trace = trace_of(ModelJob(10 * i, 60, 1, 90) for i in range(30))
    assert shaken(trace, 1) == shaken(trace, 1)
    assert shaken(trace, 1) != shaken(trace, 2)
    assert list(shaken(trace, 1).submit) == sorted(shaken(trace, 1).submit)


def test_nothing_to_shake() -> None:
    """An empty trace stays empty."""
    assert len(shaken(trace_of([]), 1)) == 0
