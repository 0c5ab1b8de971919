"""What policies are worth: the same idle hours and the same backlog under one ladder or another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.policies.ladder import Ladder
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.policy_replay import BrokenPromiseError, Run, Setting, reference, run
from backfill.sim.replay.trace_cluster import JobTale
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import ModelJob, lublin, with_estimates
from backfill.ui.report.figures import Summary, summary
from tests.unit.harvest_inputs import KILL, MOVE, PAUSE, policy, setting

CLUSTER = Cluster(8, 1)
# A cluster that is busy for less than a third of its time, in many short pieces.
HIGH = with_estimates(lublin(11, 120, 8, 0.3), 11, 3.0)
BACKLOG = 600


def played(given: Setting, policies: PolicySet) -> tuple[Run, Summary]:
    bare = reference(given, policies)
    found = run(given, policies, bare.ledger.window.end_s)
    return found, summary(found, bare)


def harvest(ladder: Ladder, saves: tuple[float, float] = (0.0, 0.0), most: int = 100) -> Summary:
    given = setting(HIGH, CLUSTER, policy(ladder, most), BACKLOG, saves=saves)
    return played(*given)[1]


@pytest.fixture(scope="module")
def by_ladder() -> dict[str, Summary]:
    return {"kill": harvest(KILL), "checkpoint": harvest(KILL, saves=(900.0, 10.0)), "pause": harvest(PAUSE)}


def test_lost_work_shrinks_with_gentler_ladders(by_ladder: dict[str, Summary]) -> None:
    """Kill loses more than kill with jobs that save themselves, and that more than pause."""
    kill, checkpoint, pause = (
        by_ladder[name].harvest.badput_core_s for name in ("kill", "checkpoint", "pause")
    )
    assert kill > 3 * checkpoint
    assert checkpoint > 3 * pause


def test_useful_work_grows_with_gentler_ladders(by_ladder: dict[str, Summary]) -> None:
    """The other way round with what counts: it grows, and with pause it nearly fills the rest."""
    kill, checkpoint, pause = (by_ladder[name] for name in ("kill", "checkpoint", "pause"))
    assert kill.useful < checkpoint.useful < pause.useful
    assert pause.harvest.harvested_fraction > 0.9
    assert pause.harvest.goodput_share > 0.95


def test_the_important_jobs_hardly_notice(by_ladder: dict[str, Summary]) -> None:
    """Whatever the ladder, the cluster's own work is done, and at once after its allocation."""
    for found in by_ladder.values():
        assert found.harvest.high_utilisation == pytest.approx(
            by_ladder["kill"].harvest.high_utilisation, rel=0.01
        )
        assert found.own_delay_s.median < 0.3
        assert found.own_delay_s.maximum <= 3.0
        assert found.delay.unpaired == 0


def test_core_seconds_add_up(by_ladder: dict[str, Summary]) -> None:
    """Nothing is used twice: all work and overhead together never exceed the machine."""
    for found in by_ladder.values():
        harvest = found.harvest
        used = harvest.high_core_s + harvest.goodput_core_s + harvest.badput_core_s
        assert used + harvest.overhead_core_s <= harvest.capacity_core_s * (1 + 1e-9)


def test_moving_helps_where_hosts_are_left_over() -> None:
    """With an instance that may go where room is, work waits less and more of it is done."""
    stay, move = harvest(PAUSE, most=1), harvest(MOVE, most=1)
    assert move.steps["moves"] > 0
    assert move.harvest.goodput_core_s > stay.harvest.goodput_core_s


# --- livelock ------------------------------------------------------------------------------------

# Both nodes are wanted for a minute in every three; a low-priority job needs ten.
PULSE = [ModelJob(0, 1, 1), *(ModelJob(600 + 180 * i, 60, 2, 60) for i in range(40))]


def long_job(ladder: Ladder, saves: tuple[float, float] = (0.0, 0.0), protect_after: int = 0) -> JobTale:
    low = [ModelJob(550, 600, 1, 600)]
    rules = replace(policy(ladder), victims=Victims(protect_after=protect_after))
    given, policies = setting(PULSE, Cluster(2, 1), rules, low, saves=saves)
    return next(t for t in played(given, policies)[0].tales if not t.high)


@pytest.mark.parametrize("ladder", [PAUSE, MOVE])
def test_a_long_job_gets_through_although_it_is_pushed_aside_again_and_again(ladder: Ladder) -> None:
    """Work longer than any gap ends soon with a ladder that keeps it, and is never lost."""
    tale = long_job(ladder)
    assert tale.completed
    assert tale.restarts == 0
    assert tale.end_s - tale.submit_s < 1200


def test_killing_starts_a_long_job_for_ever() -> None:
    """The livelock that ladders and protection avoid: a start in every gap, and no end."""
    tale = long_job(KILL, protect_after=0)
    assert not tale.completed
    assert tale.restarts == 40


def test_a_protected_job_is_killed_so_often_and_no_more() -> None:
    """Protection ends the livelock even of a ladder that kills: then its work is kept."""
    tale = long_job(KILL, protect_after=3)
    assert tale.completed
    assert tale.restarts == 3


def test_a_job_that_saves_itself_gets_through_even_when_killed() -> None:
    """With a checkpoint in every gap the same job makes progress: no livelock."""
    tale = long_job(KILL, saves=(30.0, 1.0))
    assert tale.completed
    assert tale.restarts < 15


# --- repeatability and promises ------------------------------------------------------------------

SHORT = HIGH[:25]
# Something small, and once all instances are there a job that wants every node.
LATER = [ModelJob(0, 1, 1), ModelJob(100, 600, 8, 600)]
FAILING = ReplayCosts(failures={"create": 0.1, "pause": 0.05, "suspend": 0.2, "restore": 0.1})


def history(seed: int) -> tuple[object, ...]:
    given, policies = setting(SHORT, CLUSTER, policy(), 100, costs=FAILING, seed=seed)
    found = played(given, policies)[0]
    tales = [(t.index, t.high, t.start_s, t.end_s, t.restarts) for t in found.tales]
    return (tales, found.harvest, dict(found.ledger.steps), found.refusals)


def test_same_seed_same_history() -> None:
    """Failures are drawn from the seed: equal seeds are equal to the last time, others are not."""
    assert history(3) == history(3)
    assert history(3) != history(4)


def test_transfers_share_their_bandwidth() -> None:
    """When all nodes are wanted at once, one channel makes the suspends slower than eight do."""
    costs = StepCosts(suspend_s_per_mb=0.1)
    given = {
        transfers: setting(LATER, CLUSTER, policy(), 20, ReplayCosts(costs, transfers))
        for transfers in (8, 1)
    }
    paused = {t: played(*g)[0].ledger.paused_s for t, g in given.items()}
    assert paused[1] > paused[8] + 7 * 25.6


def test_a_broken_promise_ends_the_run_with_its_story() -> None:
    """A pause that takes longer than the hook may wait lets a job start beside an instance."""
    slow = ReplayCosts(StepCosts(pause_s=10.0))
    given, policies = setting(LATER, CLUSTER, policy(), 20, slow)
    with pytest.raises(BrokenPromiseError, match="still had CPU") as broken:
        run(given, policies, 1e12)
    story = "\n".join(broken.value.lines)
    assert "pause instance vn1" in story
    assert "was given to job" in story


def test_no_reading_is_made_up_between_news_and_the_reading_that_tells_it() -> None:
    """A job that has just been allocated has not left its nodes because nobody has read of it."""
    costs = ReplayCosts(StepCosts(delete_s=1.5))
    # Slurm was last read at an odd second, and readings without news are left out 14 s at a time.
    high = [ModelJob(0, 101, 1, 101), ModelJob(101 + 27, 50, 2, 50)]
    given, policies = setting(high, Cluster(2, 1), policy(KILL), [ModelJob(0, 1000, 1, 1000)], costs)
    assert len(played(given, policies)[0].high_starts()) == len(high)


def test_instances_may_stay_beside_a_job_that_leaves_them_room() -> None:
    """With `extent: needed` on nodes of several CPUs: that breaks no promise."""
    rules = replace(policy(per_host=4), victims=Victims(extent=Extent.NEEDED))
    high = [ModelJob(600, 20_000, 2, 20_000), ModelJob(700, 10_000, 1, 10_000)]
    given, rules = setting(high, Cluster(2, 4), rules, [ModelJob(0, 9_000, 1)] * 5)
    found = played(given, rules)[0]
    assert all(tale.completed and not tale.restarts for tale in found.tales)
    assert found.ledger.paused_s < 9_000


def test_spares_are_kept_when_all_work_is_done() -> None:
    """A replay is over although instances that the policy wants at all times are still there."""
    rules = replace(policy(), scale=Scale(warm=2))
    given, rules = setting([ModelJob(0, 60, 1, 60), ModelJob(900, 60, 3, 60)], CLUSTER, rules, 3)
    assert all(tale.completed for tale in played(given, rules)[0].tales if tale.high)
