"""A plan that looks only at what is marked is the plan that looks at everything: tests/conftest.py."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.model.fleet import Rung
from backfill.core.model.plan import Plan
from backfill.core.policies.budgets import Budget, Budgets, Of
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.saving import Saving
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet
from tests.property.days import HOSTS, Accident, Day, Work, accidents, highs, lows, policies

LADDERS = (
    (RungRule(Rung.PAUSE, 1.0, 10.0), RungRule(Rung.SUSPEND, 60.0, 40.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.PAUSE, 1.0, 5.0), RungRule(Rung.MIGRATE, 30.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.MIGRATE, 5.0), RungRule(Rung.PAUSE, 1.0, 1000.0)),
    (RungRule(Rung.REQUEUE),),
)
# Every minute anew.
BUDGETS = Budgets(
    (
        Budget("1", schedule="* * * * *", duration_s=20.0),
        Budget("1", Of.DISRUPTIONS, schedule="*/2 * * * *", duration_s=70.0),
    )
)


def rules(ladder: tuple[RungRule, ...], warm: int) -> PolicySet:
    return policies(
        ladder,
        hosts=(*HOSTS, "bm4"),  # the last one is never seen
        scale=Scale(idle_s=20, boot_within_s=30, retry_after_s=5, give_up_after=3, warm=warm),
        limits=Limits(stale_after_s=10.0),
        comeback=Comeback(settle_s=3.0 * warm),
        saving=Saving(automatic=warm == 2, expected_s=100.0, least_s=5.0, cost_s=2.0),
        budgets=BUDGETS if warm else Budgets(),
        victims=Victims(extent=Extent.NEEDED if warm else Extent.HOST),
    )


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(LADDERS), st.integers(0, 2), lows, highs, accidents())
def test_a_plan_of_what_is_marked_is_the_plan(
    plans_compared: list[Plan],
    ladder: tuple[RungRule, ...],
    warm: int,
    low: Work,
    high: Work,
    wrong: list[Accident],
) -> None:
    """Whatever happens outside, plan after plan is equal: actions, refusals, times, their order."""
    day = Day(rules(ladder, warm), shared=bool(warm))
    day.fill(low, high, wrong, odd=True)
    day.run.run(200.0)
    assert plans_compared


def test_another_policy_is_followed_at_once() -> None:
    """Nothing that was said under one policy is kept under another."""
    day = Day(rules(LADDERS[0], 1))
    day.submit("htc", 500.0, 1.0)
    day.run.run(30.0)
    cycle = day.run.cycle
    cycle.policies = replace(cycle.policies, scale=Scale(warm=3))
    day.run.run(30.0)
    assert len(day.run.world.managed) == 4


def test_hours_of_a_budget_keep_no_step_awake() -> None:
    """What a budget allows is the same until it begins or ends: nobody is asked again till then."""
    day = Day(replace(rules(LADDERS[0], 2), budgets=BUDGETS))
    for _ in range(2):
        day.submit("htc", 500.0, 1.0)
    day.run.run(35.0)
    world = day.run.world
    assert len(world.managed) > 1
    assert len(world.queue) == 0
    assert world.queue.next_wake_s() > world.now_s
