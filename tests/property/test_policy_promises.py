"""The promises hold as well where not everybody leaves a host, and where budgets push aside."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.victims import Extent, Victims
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.rehearsal import Rehearsal
from tests.property import test_promises as promises

# In the first half of every minute only two may work.
HALF_MINUTES = Budgets((Budget("2", schedule="* * * * *", duration_s=30.0),))


class Day(promises.Day):
    """A day on hosts that jobs and instances share."""

    def __init__(self, ladder: tuple[RungRule, ...], *, budget: bool) -> None:
        self.sim = SimulatedWorld()
        self.sim.checks.shared = True
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.add_partition("batch", tier=10, feature="metal")
        for host in promises.HOSTS:
            self.sim.add_host(host, cpus=2, features=("metal",))
        rules = replace(promises.policies(ladder), victims=Victims(extent=Extent.NEEDED))
        if budget:
            rules = replace(rules, budgets=HALF_MINUTES)
        self.run = Rehearsal(self.sim, rules, MemoryJournal())
        self.jobs: list[str] = []
        self.dead: list[tuple[float, float]] = []
        self.blind: list[tuple[float, float]] = []


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    ladder=st.sampled_from(promises.LADDERS),
    low=promises.lows,
    high=promises.highs,
    wrong=promises.accidents,
    budget=st.booleans(),
)
def test_no_promise_is_broken_on_shared_hosts(
    ladder: tuple[RungRule, ...],
    low: list[tuple[float, float]],
    high: list[tuple[float, float]],
    wrong: list[promises.Accident],
    *,
    budget: bool,
) -> None:
    """Random work and accidents: nobody runs twice or is lost, and room is free before a start."""
    day = Day(ladder, budget=budget)
    for run_s, at_s in low:
        day.submit("htc", run_s, at_s)
    for run_s, at_s in high:
        day.submit("batch", run_s, at_s)
    for accident in wrong:
        day.arrange(accident)
    promises._until(day, day.over, 4000)
    promises._until(day, lambda: promises._quiet(day.run), 1500)
    found = [v for v in day.sim.audit() if not (v.kind == "room" and day.excused(v.at_s))]
    assert found == []
