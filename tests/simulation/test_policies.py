"""What each policy does to a simulated cluster, decided and carried out by the daemon's cycle."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import CreateInstance
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.quantities import Resources
from backfill.core.model.records import decode
from backfill.core.model.sentences import why
from backfill.core.policies.budgets import Budget, Budgets, Of
from backfill.core.policies.demand import Demand
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Prefer, Victims
from backfill.core.policy import Proof
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.drivers.simulated.world import SimulatedWorld
from tests.simulation.policy_cluster import (
    TWELVE,
    cluster,
    ended,
    one_host,
    phases,
    play,
    policies,
    ready,
    running,
)

NEEDED = Victims(extent=Extent.NEEDED)
KILL = Ladder((RungRule(Rung.REQUEUE),))


# --- victims -------------------------------------------------------------------------------------


def test_only_as_many_leave_as_the_job_needs_and_the_lowest_priority_first() -> None:
    """A job of 2 CPUs on a host of 4 pushes two of four instances aside, those of least worth."""
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",), victims=NEEDED))
    jobs = [sim.submit("htc", 300.0, priority=p) for p in (4, 3, 2, 1)]
    run.until(lambda: running(sim, *jobs), 60)
    run.run(5.0)  # until the daemon has seen that
    high = sim.submit("batch", 60.0, cpus=2)
    run.until(lambda: running(sim, high), 10)
    assert len(phases(run, Phase.READY)) == 2
    run.run(30.0)
    assert run.cycle.last.watch == frozenset()  # Slurm has shown what the job got
    assert [sim.job(j).state for j in jobs][:2] == [JobState.RUNNING] * 2
    run.until(lambda: ended(sim, high, *jobs), 900)
    assert [sim.job(j).restarts for j in jobs] == [0] * 4
    assert sim.audit() == []


def test_an_exclusive_job_still_gets_the_whole_host() -> None:
    """What Slurm shows as allocated counts, not what the job asked for."""
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",), victims=NEEDED))
    jobs = [sim.submit("htc", 100.0) for _ in range(4)]
    run.until(lambda: running(sim, *jobs), 60)
    high = sim.submit("batch", 30.0, cpus=1, exclusive=True)
    run.until(lambda: running(sim, high), 10)
    assert ready(run) == 0
    run.until(lambda: ended(sim, high, *jobs), 900)
    assert sim.audit() == []


@pytest.mark.parametrize("memory_mb", [0, 3900])
def test_a_job_whose_memory_slurm_does_not_show_may_use_all_of_it(memory_mb: int) -> None:
    """Where memory has to be free, nothing is called so while guests that stand still are in it."""
    sim = one_host()
    rules = policies(
        hosts=("bm1",),
        instances=replace(TWELVE, flavour=Flavour(cpus=1, memory_mb=1000)),
        ladder=Ladder((RungRule(Rung.SUSPEND, within_s=60.0), RungRule(Rung.REQUEUE))),
        proof=Proof.MEMORY,
        victims=NEEDED,
    )
    run = play(sim, rules)
    jobs = [sim.submit("htc", 600.0) for _ in range(4)]
    run.until(lambda: running(sim, *jobs), 60)
    run.run(5.0)
    high = sim.submit("batch", 60.0, cpus=4, memory_mb=memory_mb)
    run.until(lambda: running(sim, high), 60)
    steps = [decode(record.body) for record in run.journal.read() if record.kind == "intent"]
    free = [step for step in steps if isinstance(step, AnswerClaim) and step.ok]
    in_memory = [i.name for i in run.world.fleet.instances_on("bm1") if i.occupies_memory]
    assert not (free and in_memory)


def test_a_job_that_leaves_room_is_told_so() -> None:
    """Its hook hears that instances run on beside it, and not that there are none."""
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",), victims=NEEDED))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    run.run(5.0)
    high = sim.submit("batch", 60.0, cpus=2)
    run.until(lambda: running(sim, high), 10)
    steps = [decode(record.body) for record in run.journal.read() if record.kind == "intent"]
    (answer,) = [step for step in steps if isinstance(step, AnswerClaim)]
    assert (answer.ok, answer.reason) == (True, "what runs on the hosts leaves it all that it got")


def test_a_second_job_beside_one_that_runs_is_waited_for_like_the_first() -> None:
    """Slurm has shown long ago what the first one got: the hook of the second begins a wait of its own."""
    sim = one_host(8)
    run = play(sim, policies(hosts=("bm1",), victims=NEEDED))
    jobs = [sim.submit("htc", 1000.0) for _ in range(6)]
    run.until(lambda: running(sim, *jobs), 60)
    run.run(5.0)
    for _ in range(2):
        sim.submit("batch", 600.0, cpus=1)
        run.run(60.0)
        assert ready(run) == 6
    assert len(run.world.jobs_on("bm1")) == 2
    assert sim.audit() == []


def last_in_first_out(protect_after: int) -> tuple[SimulatedWorld, list[str], bool]:
    """Three long jobs on three CPUs, of which one is wanted for 20 s again and again: the youngest
    is killed, starts over at once and is the youngest again.
    """
    sim = one_host(3)
    victims = Victims(Extent.NEEDED, (Prefer.YOUNGEST,), protect_after=protect_after)
    run = play(sim, policies(hosts=("bm1",), ladder=KILL, victims=victims))
    jobs = [sim.submit("htc", 200.0, at_s=sim.now_s + 20.0 * i) for i in range(3)]
    run.until(lambda: running(sim, *jobs), 120)
    for i in range(60):
        sim.submit("batch", 20.0, at_s=sim.now_s + 60.0 * i)
    run.run(1500)
    youngest = jobs[-1]
    return sim, jobs, ended(sim, youngest)


def test_the_youngest_is_not_the_victim_for_ever() -> None:
    """Last in, first out starves a job that is requeued each time; protection lets it finish."""
    sim, jobs, done = last_in_first_out(protect_after=0)
    starved = sim.job(jobs[-1]).restarts
    sim, jobs, protected = last_in_first_out(protect_after=2)
    assert protected
    assert sim.job(jobs[-1]).restarts <= 2
    assert starved > 2 or not done
    assert sim.audit() == []


# --- demand and scale ----------------------------------------------------------------------------


def test_a_job_over_two_nodes_gets_them_runs_and_is_pushed_aside_as_one() -> None:
    """Two instances are made for it although its CPUs would fit one; evictions lose nothing."""
    sim = cluster()
    run = play(sim, policies(demand=Demand(max_nodes=2)))
    wide = sim.submit("htc", 100.0, num_nodes=2, cpus=2)
    run.until(lambda: running(sim, wide), 60)
    assert ready(run) == 2
    first = sim.submit("batch", 60.0, cpus=4, required_nodes=("bm1",))
    run.until(lambda: sim.job(wide).state is JobState.SUSPENDED, 10)
    run.run(10)
    second = sim.submit("batch", 80.0, cpus=4, required_nodes=("bm2",))
    run.until(lambda: ended(sim, wide, first, second), 600)
    assert sim.job(wide).restarts == 0
    assert sim.audit() == []


def test_a_ramp_up_and_down() -> None:
    """Eight jobs, two new instances a minute; afterwards one removal a minute."""
    sim = cluster()
    run = play(sim, policies(scale=Scale(idle_s=10, grow_per_min=2, shrink_per_min=1)))
    jobs = [sim.submit("htc", 240.0) for _ in range(6)]
    made = []
    for _ in range(3):
        run.run(60)
        made.append(len(run.world.managed))
    assert made == [2, 4, 6]
    run.until(lambda: ended(sim, *jobs), 900)
    begin_s = sim.now_s
    run.until(lambda: not run.world.managed, 900)
    assert sim.now_s - begin_s > 100


def test_a_quota_bounds_what_is_made_for_an_account() -> None:
    """Of one account two CPUs at a time, while another one's jobs all get instances."""
    sim = cluster()
    run = play(sim, policies(quotas=Quotas((Quota(2, account="astro"),))))
    astro = [sim.submit("htc", 60.0, account="astro") for _ in range(5)]
    run.run(40)
    assert len(run.world.managed) == 2
    assert any("quota of 2 CPUs" in why(r) for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, *astro), 600)


@pytest.mark.parametrize(
    "other", [{"reason": "Dependency"}, {"reason": "JobArrayTaskLimit"}, {"reason": "Resources", "cpus": 5}]
)
def test_who_could_not_start_has_no_part_of_a_quota(other: dict[str, object]) -> None:
    """Neither jobs that wait for something else than room, nor such as fit into no instance."""
    world, now_s = World(), 1_700_000_000.0
    world.apply(ch.Tick(now_s))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(4, 4096)), now_s))
    world.apply(ch.NodeSeen(Node("bm1", NodeBase.IDLE, cpus=4), now_s))
    job = Job("6", 6, "htc", JobState.PENDING, cpus=1, user="ann", priority=1, reason="Resources")
    for number in range(10):
        fields = {"id": str(number + 10), "raw_id": number + 10, "priority": 9, **other}
        world.apply(ch.JobSeen(replace(job, **fields), now_s))  # type: ignore[arg-type]
    world.apply(ch.JobSeen(job, now_s))
    for source in ("slurm", "bm1"):
        world.apply(ch.SourceSeen(source, now_s))
    made = plan(world, policies(hosts=("bm1",), quotas=Quotas((Quota(10, user="ann"),)))).actions
    assert any(isinstance(step, CreateInstance) for step in made)


# --- budgets -------------------------------------------------------------------------------------

EIGHT = datetime(2024, 5, 13, 8, tzinfo=UTC).timestamp()  # a Monday
OFFICE = Budget("25%", schedule="0 8 * * mon-fri", duration_s=600.0)


def test_office_hours_push_instances_aside_and_give_them_back() -> None:
    """From 8:00 on a quarter of 8 may work; at 8:10 all go on, and no job was started anew."""
    sim = cluster(start_s=EIGHT - 120)
    rules = policies(budgets=Budgets((OFFICE,)), limits=Limits(max_instances=8, boots_at_once=8))
    run = play(sim, rules)
    jobs = [sim.submit("htc", 400.0) for _ in range(8)]
    run.until(lambda: running(sim, *jobs), 100)
    run.run(EIGHT + 60 - sim.now_s)
    assert ready(run) == 2
    assert len(phases(run, Phase.PARKED)) == 6
    run.run(480)
    assert ready(run) == 2  # two have ended, and two others have gone on in their stead
    assert len(phases(run, Phase.PARKED)) == 4
    run.run(100)
    assert not phases(run, Phase.PARKED)
    run.until(lambda: ended(sim, *jobs), 900)
    assert {sim.job(j).restarts for j in jobs} == {0}
    assert sim.audit() == []


def test_a_budget_takes_those_that_boot_before_those_at_work() -> None:
    """Four work and four boot at 8:00, when four may be there: nobody's work stops for an empty one."""
    sim = cluster(start_s=EIGHT - 40)
    four = Budget("4", schedule="0 8 * * *", duration_s=600.0)
    run = play(sim, policies(budgets=Budgets((four,))))
    jobs = [sim.submit("htc", 300.0) for _ in range(4)]
    run.until(lambda: running(sim, *jobs), 30)
    run.run(EIGHT - 3 - sim.now_s)
    more = [sim.submit("htc", 100.0) for _ in range(4)]
    run.until(lambda: len(phases(run, Phase.BOOTING)) == 4, 3)
    run.run(EIGHT + 30 - sim.now_s)
    assert len(run.world.managed) == 4
    assert running(sim, *jobs)
    run.until(lambda: ended(sim, *jobs, *more), 900)
    assert sim.audit() == []


def test_a_budget_counts_those_that_move() -> None:
    """Four stand still, one may be at work, and the other host is free: they move there one by one."""
    sim = cluster(start_s=EIGHT)
    away = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=30.0), RungRule(Rung.MIGRATE)))
    run = play(sim, policies(ladder=away))
    sim.submit("batch", 90.0, cpus=4, required_nodes=("bm2",))
    run.run(5.0)
    jobs = [sim.submit("htc", 120.0) for _ in range(4)]
    run.until(lambda: running(sim, *jobs), 60)
    sim.submit("batch", 1000.0, cpus=4, required_nodes=("bm1",))
    run.until(lambda: len(phases(run, Phase.PARKED)) == 4, 60)
    run.cycle.policies = replace(run.cycle.policies, budgets=Budgets((Budget("1"),)))
    most = 0
    while not ended(sim, *jobs):
        run.run(0.5)
        most = max(most, len(phases(run, Phase.MOVING) | phases(run, Phase.READY)))
    assert most == 1
    assert sim.audit() == []


def test_a_budget_of_disruptions_lets_idle_ones_go_one_by_one() -> None:
    """With one disruption at a time, two idle instances never leave together; with none, never."""
    for share, left in (("1", 0), ("0", 4)):
        sim = cluster()
        rules = policies(budgets=Budgets((Budget(share, Of.DISRUPTIONS),)))
        run = play(sim, rules)
        jobs = [sim.submit("htc", 30.0) for _ in range(4)]
        run.until(lambda sim=sim, jobs=jobs: ended(sim, *jobs), 200)  # type: ignore[misc]
        most = 0
        for _ in range(400):
            run.run(0.5)
            most = max(most, len(phases(run, Phase.DRAINING) | phases(run, Phase.REMOVING)))
        assert most == int(share)
        assert len(run.world.managed) == left


def test_what_earlier_jobs_suffered_does_not_spare_the_next_one_on_their_node() -> None:
    """It was pushed aside as often as a job may be: a fresh job of low priority there is the victim."""
    sim = one_host()
    rules = policies(hosts=("bm1",), victims=NEEDED, scale=Scale(idle_s=5000))
    run = play(sim, rules)
    for _ in range(NEEDED.protect_after):
        job = sim.submit("htc", 20.0)
        run.until(lambda job=job: running(sim, job), 60)  # type: ignore[misc]
        high = sim.submit("batch", 5.0, cpus=4, required_nodes=("bm1",))
        run.until(lambda job=job, high=high: ended(sim, job, high), 200)  # type: ignore[misc]
    run.run(10.0)
    assert run.world.managed["vn1"].evictions == NEEDED.protect_after
    poor = sim.submit("htc", 3000.0, priority=1)
    run.until(lambda: running(sim, poor), 60)
    rich = sim.submit("htc", 3000.0, priority=1000)
    run.until(lambda: running(sim, rich), 60)
    run.run(5.0)
    assert sim.job(poor).nodes == ("vn1",)
    sim.submit("batch", 60.0, cpus=3, required_nodes=("bm1",))
    run.until(lambda: sim.job(poor).state is JobState.SUSPENDED, 10)
    assert running(sim, rich)
    assert sim.audit() == []


def test_one_job_that_was_pushed_aside_so_often_is_spared() -> None:
    """Within one run, on one node: then another goes in its stead."""
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",), victims=NEEDED))
    poor = sim.submit("htc", 3000.0, priority=1)
    run.until(lambda: running(sim, poor), 60)
    for _ in range(NEEDED.protect_after):
        high = sim.submit("batch", 5.0, cpus=4, required_nodes=("bm1",))
        run.until(lambda high=high: ended(sim, high) and running(sim, poor), 100)  # type: ignore[misc]
    rich = sim.submit("htc", 3000.0, priority=1000)
    run.until(lambda: running(sim, rich), 60)
    run.run(5.0)
    sim.submit("batch", 60.0, cpus=3, required_nodes=("bm1",))
    run.until(lambda: sim.job(rich).state is JobState.SUSPENDED, 10)
    assert running(sim, poor)
    assert sim.audit() == []
