"""A daemon's journal replays bit for bit, whatever went wrong in its days."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backfill.core.model.plan import Plan
from backfill.core.policies.scale import Scale
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.replay.journal import replay_journal
from tests.property.days import Accident, Day, Work, accidents, highs, lows
from tests.property.test_queue import LADDERS, rules


def played(ladder: int, warm: int, low: Work, high: Work, wrong: list[Accident]) -> Day:
    day = Day(rules(LADDERS[ladder], warm))
    day.fill(low, high, wrong, odd=True)
    day.run.run(200.0)
    return day


# A journal is replayed under one policy.
WRONG = accidents(but=["change ladder"], more=["old copy"])


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, len(LADDERS) - 1), st.integers(0, 2), lows, highs, WRONG)
@example(0, 1, [(5.0, 0.0)], [(2.0, 5.0)], [Accident("crash instance", 6.0, 0)])  # counted by readings
@example(0, 0, [(4.0, 0.0)], [], [Accident("old copy", 70.0, 0)])  # destroyed when it was seen for long
@example(0, 0, [(4.0, 0.0)], [(8.0, 75.0)], [Accident("old copy", 70.0, 1), Accident("kill daemon", 74.0, 2)])
def test_the_same_changes_give_the_same_plans(
    ladder: int, warm: int, low: Work, high: Work, wrong: list[Accident]
) -> None:
    """Restarts, silence, cut hosts and failing calls included: every plan comes out again."""
    run = played(ladder, warm, low, high, wrong).run
    found = replay_journal(run.journal.read(), run.policies)
    assert found.differences == []
    assert found.plans > 0
    assert found.steps > 0


def test_another_policy_shows_where_plans_differ() -> None:
    """A plan that would differ is shown as a diff, with its time and record."""
    # What happens to a host while the instance idles is where a plan is made again.
    run = played(0, 0, [(10.0, 1.0)], [(5.0, 30.0)], [Accident("drain", 29.0, 1)]).run
    other = replace(run.policies, scale=Scale(idle_s=2.0))
    found = replay_journal(run.journal.read(), other)
    first = found.differences[0]
    lines = list(first.lines())
    assert any(line.startswith("+SetNode ") and 'phase="draining"' in line for line in lines)
    assert first.record > 0


def test_a_pruned_journal_is_replayed_from_the_next_start() -> None:
    """What was before a gap is only remembered, as a restarted daemon remembers it."""
    day = played(0, 1, [(40.0, 1.0)], [(20.0, 30.0)], [Accident("kill daemon", 60.0, 1)])
    records = list(day.run.journal.read())
    found = replay_journal([r for r in records if r.id != 5], day.run.policies)
    assert found.differences == []
    assert found.lives == 1
    assert found.skipped > 5


def test_the_journal_of_a_run_is_not_replayed_by_accident(plans_compared: list[Plan]) -> None:
    """Replaying calls no driver and writes nothing."""
    run = played(0, 0, [(10.0, 1.0)], [], []).run
    assert isinstance(run.journal, MemoryJournal)
    before = len(list(run.journal.read()))
    replay_journal(run.journal.read(), run.policies)
    assert len(list(run.journal.read())) == before
    assert plans_compared
