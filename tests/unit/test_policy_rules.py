"""The rules themselves, values in and values out: victims, gaps, saving, budgets, quotas."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations
from math import inf, isclose, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.clock import parse_cron
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.refusals import Code, because
from backfill.core.model.sentences import sentence
from backfill.core.policies.budgets import Budget, Budgets, Of
from backfill.core.policies.demand import Demand
from backfill.core.policies.gaps import Gaps, late
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policies.saving import Saving, daly_s
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Candidate, Prefer, Victims
from backfill.core.world import World

NOW = 100_000.0
FLAVOUR = Flavour(cpus=4, memory_mb=1000)


def job(number: int = 1, **fields: object) -> Job:
    return Job(str(number), number, "htc", JobState.PENDING, **fields)  # type: ignore[arg-type]


def one(name: str, cpus: int = 1, **fields: object) -> Candidate:
    return Candidate(name, Resources(cpus, cpus * 100), **fields)  # type: ignore[arg-type]


# --- victims -------------------------------------------------------------------------------------


def test_the_nodes_of_a_host_come_in_order_of_their_names() -> None:
    """Who of equals has to leave is the same in every process: sets have no order of their own."""
    names, world = [f"vn{number}" for number in range(1, 10)], World()
    for name in reversed(names):
        node = ManagedNode(name, "10.0.0.1/8", "bm1", 1, Phase.BOOTING, NOW, NOW)
        world.apply(ch.NodeManaged(node))
    assert [node.name for node in world.fleet.managed_on("bm1")] == names


def test_the_idle_go_before_the_lowly_and_these_before_the_young() -> None:
    """Idle instances first, then by priority, then by what is at stake, then the youngest."""
    all_of_them = [
        one("old", priority=5, started_s=10.0),
        one("young", priority=5, started_s=90.0),
        one("lowly", priority=1, started_s=10.0),
        one("dear", priority=5, stake_core_s=9.0),
        one("idle", idle=True),
    ]
    found = [Victims().choose(all_of_them, Resources(n, 0), NOW) for n in range(1, 6)]
    assert found[-1] == ("idle", "lowly", "young", "old", "dear")
    assert all(wider[: len(fewer)] == fewer for fewer, wider in combinations(found, 2))


def test_whoever_is_not_needed_after_all_is_given_back() -> None:
    """Two small ones are taken first, but the large one alone is enough: the small ones stay."""
    found = Victims().choose(
        [one("a", 1, priority=1), one("b", 1, priority=2), one("c", 4, priority=3)], Resources(4, 0), NOW
    )
    assert found == ("c",)


def test_memory_can_outweigh_work() -> None:
    """With a weight, keeping 4000 MB costs more than 100 core seconds; without, nothing."""
    big, busy = one("big", memory_mb=4000), one("busy", stake_core_s=100.0)
    assert Victims(memory_weight=0.1).choose([big, busy], Resources(1, 0), NOW) == ("busy",)
    assert Victims().choose([big, busy], Resources(1, 0), NOW) == ("big",)


def test_progress_spares_what_is_nearest_to_its_end() -> None:
    """By progress the job with most time left goes, and one without a limit before all."""
    rule = Victims(order=(Prefer.PROGRESS,))
    jobs = [one("soon", end_s=NOW + 10), one("late", end_s=NOW + 900), one("open")]
    assert rule.choose(jobs, Resources(3, 0), NOW) == ("open", "late", "soon")


@pytest.mark.parametrize(
    ("rule", "fields"),
    [
        (Victims(min_run_s=60.0), {"started_s": NOW - 30.0}),
        (Victims(nearly_done_s=60.0), {"end_s": NOW + 30.0, "started_s": 1.0}),
        (Victims(protect_after=2), {"repeats": 2, "started_s": 1.0}),
    ],
)
def test_the_protected_are_spared_while_others_suffice(rule: Victims, fields: dict[str, object]) -> None:
    """The young, the nearly done and those who were victims before go last, but they do go."""
    both = [one("protected", 1, **fields), one("other", priority=99, started_s=1.0)]
    assert rule.choose(both, Resources(1, 0), NOW) == ("other",)
    assert rule.choose(both, Resources(2, 0), NOW) == ("other", "protected")


def test_among_the_protected_the_one_who_suffered_least_goes() -> None:
    """Otherwise one of them would be the victim for ever."""
    found = Victims().choose([one("a", repeats=9), one("b", repeats=4)], Resources(1, 0), NOW)
    assert found == ("b",)


sizes = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 3)), max_size=7)


@given(sizes, st.integers(0, 20))
def test_a_chosen_set_suffices_and_nobody_in_it_is_superfluous(
    given_sizes: list[tuple[int, int]], cpus: int
) -> None:
    """Whatever is asked: enough if that is possible at all, and no member could stay."""
    candidates = [one(f"v{i}", c, priority=p) for i, (c, p) in enumerate(given_sizes)]
    need = Resources(cpus, 0)
    chosen = set(Victims().choose(candidates, need, NOW))
    freed = sum((c.resources for c in candidates if c.name in chosen), NOTHING)
    if not need.fits(sum((c.resources for c in candidates), NOTHING)):
        assert len(chosen) == len(candidates)
        return
    assert need.fits(freed)
    for candidate in candidates:
        if candidate.name in chosen:
            assert not need.fits(freed - candidate.resources)


# --- gaps ----------------------------------------------------------------------------------------


def test_a_gap_is_worth_it_when_it_is_long_enough_or_not_known_to_end() -> None:
    """What is not known is no reason; what is known is told with its figures."""
    gaps = Gaps()
    assert gaps.too_short(NOW, None, 600.0) is None
    assert gaps.too_short(NOW, NOW + 600.0, 600.0) is None
    soon = because(Code.WANTED_SOON, wanted_in_s=300.0, pays_s=600.0)
    assert gaps.too_short(NOW, NOW + 300.0, 600.0) == soon
    assert sentence(soon) == "Slurm wants it again in 300 s: less than 600 s"
    assert gaps.too_short(NOW, NOW - 1.0, 600.0) == because(Code.WANTED_NOW)


def test_a_rung_is_pointless_only_when_asked_to_look_ahead() -> None:
    """A host that is busy until after the rung is over makes waiting there useless."""
    assert Gaps(foresee=True).pointless(NOW + 60, NOW + 3600)
    assert not Gaps(foresee=True).pointless(NOW + 60, NOW + 30)
    assert not Gaps(foresee=True).pointless(None, NOW + 3600)
    assert not Gaps().pointless(NOW + 60, NOW + 3600)


def test_predicted_finish_against_deadline() -> None:
    """600 s of work after a wait of 1000 s meet a deadline in 1600 s and miss an earlier one."""
    assert not late(NOW, 600.0, NOW + 1000.0, NOW + 1600.0)
    assert late(NOW, 600.0, NOW + 1000.0, NOW + 1599.0)
    assert not late(NOW, 600.0, NOW + 1000.0, 0.0)
    assert not late(NOW, 600.0, None, NOW + 1.0)


# --- saving --------------------------------------------------------------------------------------


@given(st.floats(0.1, 500.0), st.floats(1000.0, 1e6))
def test_daly_loses_no_more_than_its_neighbours(cost_s: float, mean_s: float) -> None:
    """At Daly's interval the expected overhead (his exact model) is at its least, within 1 %."""

    def overhead(interval_s: float) -> float:
        from math import expm1

        return mean_s * expm1((interval_s + cost_s) / mean_s) / interval_s

    best = overhead(daly_s(cost_s, mean_s))
    tried = [daly_s(cost_s, mean_s) * (0.5 + i / 20) for i in range(31)]
    assert best <= min(overhead(t) for t in tried) * 1.01


def test_young_and_daly_agree_where_a_checkpoint_is_cheap() -> None:
    """Young's is the first order of Daly's, and less and less wrong the cheaper it is."""
    assert isclose(daly_s(1.0, 1e6), sqrt(2.0 * 1.0 * 1e6), rel_tol=1e-3)
    assert daly_s(300.0, 1000.0) < sqrt(2.0 * 300.0 * 1000.0)
    assert daly_s(5000.0, 1000.0) == 1000.0


def test_the_interval_follows_what_was_seen() -> None:
    """Evictions every hour shorten the interval that was assumed for one a day."""
    rule = Saving(expected_s=86400.0, least_s=60.0)
    calm = rule.due_s(0.0, 30.0, 0.0, 0)
    often = rule.due_s(0.0, 30.0, 100 * 3600.0, 100)
    assert often < calm
    assert isclose(rule.mean_to_eviction_s(100 * 3600.0, 100), 3600.0, rel_tol=0.3)
    assert Saving(least_s=600.0).interval_s(0.001, 10.0) == 600.0
    assert Saving(most_s=600.0).interval_s(100.0, 1e9) == 600.0


# --- times of day --------------------------------------------------------------------------------


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("schedule", "now", "last", "after"),
    [
        ("0 8 * * mon-fri", "2024-05-12 12:00", "2024-05-10 08:00", "2024-05-13 08:00"),
        ("*/15 * * * *", "2024-05-12 12:16", "2024-05-12 12:15", "2024-05-12 12:30"),
        ("30 22 1,15 * *", "2024-05-12 12:00", "2024-05-01 22:30", "2024-05-15 22:30"),
        ("0 0 13 * 5", "2024-05-11 00:00", "2024-05-10 00:00", "2024-05-13 00:00"),
        ("0 6 29 feb *", "2024-05-12 12:00", "2024-02-29 06:00", "2028-02-29 06:00"),
        ("@daily", "2024-05-12 00:00", "2024-05-12 00:00", "2024-05-13 00:00"),
        ("5 4 * * 7", "2024-05-12 12:00", "2024-05-12 04:05", "2024-05-19 04:05"),
    ],
)
def test_a_schedule_has_a_last_and_a_next_moment(schedule: str, now: str, last: str, after: str) -> None:
    """As cron(8) has it, in UTC: day and weekday together mean either."""
    cron = parse_cron(schedule)
    assert cron.last(at(now)) == at(last)
    assert cron.after(at(now)) == at(after)


@pytest.mark.parametrize(
    ("schedule", "why"),
    [
        ("0 8 * *", "has 4 fields instead of 5"),
        ("0 24 * * *", "has '24' as hour; it goes from 0 to 23"),
        ("0 8 * * mon-funday", "has 'funday' as weekday"),
        ("30-10 * * * *", "has 30-10 as minute, which ends before it begins"),
        ("0 0 31 2 *", "never comes"),
    ],
)
def test_a_wrong_schedule_is_told(schedule: str, why: str) -> None:
    """The field, what stands there, and what may."""
    with pytest.raises(ValueError, match="^" + why.replace("*", r"\*")):
        parse_cron(schedule)


def test_a_budget_holds_in_its_hours_and_the_lowest_counts() -> None:
    """Half at any time, a fifth on working days from 8 to 18; both ends are told."""
    budgets = Budgets((Budget("50%"), Budget("20%", schedule="0 8 * * mon-fri", duration_s=36000.0)))
    noon, night = at("2024-05-13 12:00"), at("2024-05-13 18:00")
    assert budgets.ceiling(Of.INSTANCES, 10, noon) == 2
    assert budgets.ceiling(Of.INSTANCES, 10, night) == 5
    assert budgets.ceiling(Of.DISRUPTIONS, 10, noon) is None
    assert budgets.changes_s(noon) == at("2024-05-13 18:00")
    assert budgets.changes_s(night) == at("2024-05-14 08:00")
    assert Budgets((Budget("3"),)).changes_s(noon) is None
    assert budgets.lifts_s(Of.INSTANCES, 10, noon) == at("2024-05-13 18:00")
    assert budgets.lifts_s(Of.INSTANCES, 10, night) is None  # as the other begins before this ends
    assert budgets.lifts_s(Of.DISRUPTIONS, 10, noon) is None
    shifts = [Budget("0", schedule=f"0 {hour} * * *", duration_s=7200.0) for hour in (8, 9, 11)]
    assert Budgets(tuple(shifts)).lifts_s(Of.INSTANCES, 10, at("2024-05-13 08:30")) == at("2024-05-13 13:00")
    assert Budget("3").until_s(noon) == inf
    assert Budget("3").allows(10) == 3


# --- quotas and demand ---------------------------------------------------------------------------


def test_a_quota_counts_what_runs_and_what_waits() -> None:
    """With 3 of 8 CPUs in use, two jobs of 2 CPUs are admitted, by priority; others' all are."""
    rule = Quotas((Quota(8, account="astro"),))
    pending = [job(n, cpus=2, account="astro", priority=p) for n, p in ((1, 5), (2, 9), (3, 7), (4, 1))] + [
        job(5, cpus=99, account="bio")
    ]
    admitted, refused = rule.admit(pending, [job(9, cpus=3, account="astro")])
    assert [j.id for j in admitted] == ["2", "3", "5"]
    reached = because(Code.QUOTA, cpus=8, whose="account astro")
    assert refused == dict.fromkeys(("1", "4"), reached)
    assert sentence(reached) == "the quota of 8 CPUs for account astro is reached"


def test_every_array_task_that_waits_for_room_counts_and_no_throttled_one() -> None:
    """Slurm lets two tasks of `--array=1-9%2` run: the other seven could not use an instance."""
    tasks = [Job(f"7_{i}", 7, "htc", JobState.PENDING, reason="Resources") for i in (1, 2)]
    tasks += [Job(f"7_{i}", 7, "htc", JobState.PENDING, reason="JobArrayTaskLimit") for i in range(3, 10)]
    assert Demand().need(tasks, FLAVOUR, NOW).cpus == 2


def test_a_job_over_several_nodes_counts_by_its_share_and_width() -> None:
    """12 CPUs on 3 nodes are 4 on each, which fits; 15 are not; 4 nodes are more than allowed."""
    rule = Demand(max_nodes=3)
    fits = job(1, num_nodes=3, cpus=12, memory_mb=900)
    need = rule.need([fits, job(2, num_nodes=3, cpus=15), job(3, num_nodes=4)], FLAVOUR, NOW)
    assert (need.cpus, need.nodes, need.misfits) == (12, 3, ("2", "3"))
    assert Demand().need([fits], FLAVOUR, NOW).misfits == ("1",)


def test_a_job_that_may_begin_soon_counts_ahead() -> None:
    """Its instance shall be ready by then; without `ahead_s` it counts when it may begin."""
    soon = job(reason="BeginTime", eligible_s=NOW + 60.0)
    assert Demand().need([soon], FLAVOUR, NOW).cpus == 0
    assert Demand(ahead_s=60.0).need([soon], FLAVOUR, NOW).cpus == 1


def test_a_ramp_says_when_it_is_full() -> None:
    """0 is no ramp."""
    assert Scale().may_grow(99) is None
    assert Scale(grow_per_min=4).may_grow(3) is None
    full = because(Code.RAMP, key="scale.grow_per_min", count=4, most=4)
    assert Scale(grow_per_min=4).may_grow(4) == full
    assert "4 in the last minute" in sentence(full)
    assert Scale(shrink_per_min=4).may_shrink(4) is not None
