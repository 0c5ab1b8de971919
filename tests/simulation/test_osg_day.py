"""Two hours of pilots on hosts that others want: hardly a payload is lost, and nobody waits for one."""

from __future__ import annotations

from collections import Counter

from backfill.core.model.actions import MigrateInstance, SuspendInstance
from backfill.core.model.lifecycle import Phase
from backfill.core.model.plan import AnswerClaim, SetNode
from backfill.core.model.records import decode
from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.pool_day import day_of
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.shipped import folder
from backfill.sim.scenarios.stage import SimulatedStage
from tests.bench.osg_day import LONGEST_S, played


def test_a_day_of_pilots_beside_two_rivals() -> None:
    """Plain requeue loses payloads, never evicting keeps others waiting; the patient way does neither."""
    rows = {row.name: row for row in played(2.0, seed=1, longest_s=LONGEST_S)}
    own, unknown, requeue, never = (
        rows[name] for name in ("own pool", "unknown pool", "plain requeue", "never evicting")
    )
    assert own.lost <= 0.03
    assert unknown.lost <= 0.08
    assert requeue.lost > max(own.lost, unknown.lost)
    assert sum(requeue.lost_by.values()) > 0.99 * requeue.badput
    assert min(own.goodput, unknown.goodput) > requeue.goodput
    assert never.wait_mean_s > 100 * max(own.wait_mean_s, unknown.wait_mean_s)
    assert own.goodput > 0.98 * never.goodput


def test_where_a_hosts_memory_is_wanted_too_that_of_pilots_is_kept_elsewhere() -> None:
    """On disk or on another host, not by going on slowly; the host's job never starts beside it."""
    scenario = load_scenario(folder() / "osg_memory.yaml")
    stage = SimulatedStage(scenario)
    outcome = play(scenario, stage)
    done = Counter(str(r.body["t"]) for r in outcome.records if r.kind == "intent")
    answers = [decode(r.body) for r in outcome.records if r.body.get("t") == AnswerClaim.__name__]
    nodes = [decode(r.body) for r in outcome.records if r.body.get("t") == SetNode.__name__]
    assert all(answer.ok for answer in answers if isinstance(answer, AnswerClaim))
    assert not any(one.node.phase is Phase.THROTTLED for one in nodes if isinstance(one, SetNode))
    day = day_of("ours", stage, outcome)
    kept = day.evictions - day.runs_lost
    assert done[SuspendInstance.__name__] + done[MigrateInstance.__name__] >= kept >= 0.8 * day.evictions
    assert (day.twice, day.done) == (0, 140)
    assert day.lost <= 0.02
