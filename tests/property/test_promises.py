"""Whatever goes wrong outside, no promise is broken and everything ends (simulated time)."""

from __future__ import annotations

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet, Proof
from tests.property.days import HOSTS, Accident, Day, Work, accidents, highs, lows, policies

LADDERS = (
    (RungRule(Rung.PAUSE, 1.0, 10.0), RungRule(Rung.SUSPEND, 60.0, 60.0), RungRule(Rung.REQUEUE)),
    (
        RungRule(Rung.PAUSE, 1.0, 5.0),
        RungRule(Rung.MIGRATE, 30.0),
        RungRule(Rung.SUSPEND, 60.0, 600.0),
        RungRule(Rung.REQUEUE),
    ),
    (RungRule(Rung.MIGRATE, 5.0), RungRule(Rung.PAUSE, 1.0, 1000.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.SUSPEND, 60.0, 30.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.REQUEUE),),
)
# Hosts are shared with what is only slowed down, for a while.
THROTTLING = (
    RungRule(Rung.THROTTLE, 1.0, 15.0),
    RungRule(Rung.PAUSE, 1.0, 30.0),
    RungRule(Rung.SUSPEND, 60.0, 600.0),
)
# In the first half of every minute only two may work.
HALF_MINUTES = Budgets((Budget("2", schedule="* * * * *", duration_s=30.0),))
# A person who closes a host pushes work aside without a job that would excuse it.
WRONG = accidents(but=["close host"])


def rules(ladder: tuple[RungRule, ...], **more: object) -> PolicySet:
    return policies(
        ladder,
        scale=Scale(idle_s=20, boot_within_s=30, retry_after_s=5, give_up_after=20),
        proof=Proof.MEMORY if ladder[0].rung is Rung.SUSPEND else Proof.CPU,
        answer_within_s=8.0,
        **more,
    )


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.sampled_from(LADDERS), lows, highs, WRONG)
@example(  # both hosts are wanted while an instance moves from the one to the other
    ladder=LADDERS[2], low=[(5.0, 0.0)], high=[(2.0, 5.0)] * 3, wrong=[]
)
@example(  # a move of which nobody heard that it had succeeded, to a host that was wanted then
    ladder=LADDERS[2], low=[(5.0, 0.0)], high=[(2.0, 5.0)] * 3, wrong=[Accident("answers lost", 1.0, 3)]
)
@example(  # two instances of one host move away one after the other, which takes four seconds
    ladder=LADDERS[2],
    low=[(5.0, 0.0), (5.0, 26.6), (21.0, 0.0), (19.0, 18.6), (5.0, 0.0), (5.0, 0.0)],
    high=[(2.0, 5.0), (2.0, 5.0), (2.0, 24.9), (2.0, 5.0)],
    wrong=[Accident("kill daemon", 1.0, 0), Accident("kill daemon", 1.0, 0)],
)
def test_no_promise_is_broken_and_everything_ends(
    ladder: tuple[RungRule, ...], low: Work, high: Work, wrong: list[Accident]
) -> None:
    """Random work and random accidents: no job twice, none lost, room free, nothing left over."""
    day = Day(rules(ladder))
    day.fill(low, high, wrong)
    day.until(day.over, 4000)
    day.until(day.quiet, 1500)
    assert set(day.sim.slurm.observe().nodes) == set(HOSTS)
    assert all(not day.sim.hosts[h].instances for h in HOSTS)
    assert day.broken() == []
    done = [day.sim.job(j).state for j in day.jobs]
    assert all(state in (JobState.COMPLETED, JobState.CANCELLED) for state in done)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(
    ladder=st.sampled_from((*LADDERS, THROTTLING)), low=lows, high=highs, wrong=WRONG, budget=st.booleans()
)
def test_no_promise_is_broken_on_shared_hosts(
    ladder: tuple[RungRule, ...], low: Work, high: Work, wrong: list[Accident], *, budget: bool
) -> None:
    """The same where not everybody leaves a host, and where budgets push aside."""
    budgets = HALF_MINUTES if budget else Budgets()
    day = Day(rules(ladder, victims=Victims(extent=Extent.NEEDED), budgets=budgets), shared=True)
    day.fill(low, high, wrong)
    day.until(day.over, 4000)
    day.until(day.quiet, 1500)
    assert day.broken() == []
