"""Work stands still when the policy file is read again: the patience in it counts at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.workloads import Workloads
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_workloads import one_pilot, phase, pilots, take

STAYS = RungRule(Rung.PAUSE, within_s=1.0, for_s=None)


def follow_from_now(run: Rehearsal, workloads: Workloads) -> None:
    """The policy file was read again."""
    run.policies = run.cycle.policies = replace(run.policies, workloads=workloads)


@pytest.mark.parametrize("rules", [Workloads(), pilots(STAYS, stand_still_s=1000.0)])
def test_a_patience_that_is_taken_back_ends_nothing_that_stands_still(rules: Workloads) -> None:
    """By the policy file as it is now the pilot can stand still for longer, or without end."""
    run, low = one_pilot(pilots(STAYS))
    take(run.sim, 250.0, None)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.run(50.0)
    follow_from_now(run, rules)
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 1500)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_a_patience_that_is_shortened_counts_from_when_the_stop_began() -> None:
    """Also where for a while the policy file gave none."""
    run, low = one_pilot(pilots(STAYS))
    take(run.sim, 300.0, None)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    stopped_s = run.now_s
    run.run(20.0)
    follow_from_now(run, Workloads())
    run.run(10.0)
    follow_from_now(run, pilots(STAYS, stand_still_s=60.0))
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 60)
    assert 50 < run.now_s - stopped_s < 70
    assert run.sim.audit() == []
