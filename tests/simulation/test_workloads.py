"""Workloads and their patience: no payload goes on after it, and none is stopped in vain."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

from backfill.core.model.changes import HoldSet
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.workloads import AtEnd, JobSignal, ReadyMade, WarnBy, Workload, Workloads
from backfill.core.policy import Proof
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import DriverError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, ended, play, policies, running

THROTTLE = RungRule(Rung.THROTTLE, within_s=1.0)
PAUSE = RungRule(Rung.PAUSE, within_s=1.0, for_s=90.0)
MIGRATE, REQUEUE = RungRule(Rung.MIGRATE), RungRule(Rung.REQUEUE)


def pilots(*rungs: RungRule, **more: object) -> Workloads:
    """All jobs can stand still for 100 s, by this ladder."""
    given = Workload("pilot", stand_still_s=100.0, ladder=rungs or (PAUSE, REQUEUE))
    return Workloads((replace(given, **more),))  # type: ignore[arg-type]


def one_pilot(workloads: Workloads, hosts: tuple[str, ...] = ("bm1",)) -> tuple[Rehearsal, str]:
    """A pilot at work on an instance of bm1."""
    sim = cluster(cpus=1)
    run = play(sim, policies(hosts=hosts, workloads=workloads, limits=Limits(destroys_per_min=6)))
    low = sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, low), 30)
    run.run(3.0)
    return run, low


def take(sim: SimulatedWorld, for_s: float, limit_s: float | None, host: str = "bm1") -> str:
    """A job of somebody else gets the host."""
    return sim.submit("batch", for_s, time_limit_s=limit_s, required_nodes=(host,))


def node(run: Rehearsal) -> str:
    return next(iter(run.world.managed))


def phase(run: Rehearsal) -> Phase | None:
    found = run.world.managed.get("vn1")
    return None if found is None else found.phase


def test_a_short_stay_is_waited_for() -> None:
    """Its limit says so: the pilot is paused and goes on with nothing lost."""
    run, low = one_pilot(pilots(THROTTLE, PAUSE, REQUEUE))
    take(run.sim, 60.0, 80.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    assert "pilot can stand still for 100 s: it waits" in run.world.managed["vn1"].reason
    run.until(lambda: phase(run) is Phase.READY, 120)
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 1200)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_patience_that_is_over_ends_a_pilot_before_it_runs_again() -> None:
    """Nobody knew how long the host would be taken; its copy is destroyed, and it starts over."""
    run, low = one_pilot(pilots(RungRule(Rung.PAUSE, within_s=1.0, for_s=None)))
    take(run.sim, 300.0, None)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    stopped_s = run.now_s
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 130)
    assert 90 < run.now_s - stopped_s < 110
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 2000)
    assert run.sim.job(low).restarts == 1
    assert run.sim.audit() == []


@pytest.mark.parametrize("rungs", [(PAUSE, MIGRATE, REQUEUE), (PAUSE, REQUEUE)])
def test_a_moment_of_being_held_back_is_not_counted_against_the_pause(rungs: tuple[RungRule, ...]) -> None:
    """Its neighbour keeps the hook waiting; when that moment is over it is paused, and no more."""
    sim = cluster(cpus=2)
    run = play(sim, policies(hosts=("bm1",), workloads=pilots(*rungs)))
    lows = [sim.submit("htc", 300.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 30)
    run.run(3.0)
    error = UnreachableError("vn2", "no answer")
    orders = [sim.faults.fail(call, error, subject="vn2", times=-1) for call in ("throttle", "pause")]
    take(sim, 30.0, None)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    for order in orders:
        order.end()
    told = [r for r in run.journal.read() if r.subject == "vn1"]
    assert not [r for r in told if r.kind == "phase" and "did not work" in str(r.body["reason"])]
    begun = {str(r.body["t"]) for r in told if r.kind == "intent"}
    assert not {"MigrateInstance", "DeleteInstance", "RequeueJob"} & begun
    assert run.world.managed["vn1"].stopping.kind is Rung.PAUSE
    low = next(low for low in lows if sim.job(low).nodes == ("vn1",))
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 1200)
    assert sim.job(low).restarts == 0
    assert [v for v in sim.audit() if v.kind != "room"] == []


def test_a_pilot_that_comes_as_its_host_is_taken_is_stopped_by_its_own_ladder() -> None:
    """Slurm starts both at once: that of all jobs ends with requeue, and its own stands still."""
    sim = cluster(cpus=1)
    rules = policies(hosts=("bm1",), workloads=pilots(PAUSE), ladder=Ladder((REQUEUE,)))
    run = play(sim, replace(rules, scale=Scale(warm=1, idle_s=600)))
    run.until(lambda: phase(run) is Phase.READY, 30)
    run.run(5.0)
    low = sim.submit("htc", 100.0, at_s=sim.now_s + 5.0)
    sim.submit("batch", 30.0, at_s=sim.now_s + 5.0, required_nodes=("bm1",))
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 500)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_pause_that_works_during_a_move_that_fails_is_told_to_slurm() -> None:
    """The move began because the pause took long, and both were on their way: its job goes on later."""
    run, low = one_pilot(pilots(PAUSE, MIGRATE), hosts=("bm1", "bm2"))
    run.costs = replace(run.costs, pause_s=1.5)
    run.sim.faults.fail("migrate", UnreachableError("vn", "no answer"), times=-1)
    take(run.sim, 40.0, 50.0)
    run.until(lambda: phase(run) is Phase.MOVING, 10)
    run.until(lambda: phase(run) is Phase.PARKED, 20)
    assert run.sim.job(low).state is JobState.SUSPENDED
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 1200)
    assert run.sim.job(low).restarts == 0
    assert [v for v in run.sim.audit() if v.kind != "room"] == []


def test_a_host_that_is_free_too_late_brings_back_no_pilot() -> None:
    """The daemon was away while patience ran out, and the host is free as it comes back."""
    run, low = one_pilot(pilots(RungRule(Rung.PAUSE, within_s=1.0, for_s=None)))
    high = take(run.sim, 60.0, None)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.kill()
    run.run(120.0)
    assert run.sim.job(high).state is JobState.COMPLETED
    run.start()
    run.until(lambda: run.sim.job(low).restarts == 1, 60)
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 2000)
    assert run.sim.audit() == []


def test_a_pilot_that_may_not_start_anew_ends() -> None:
    """Submitted as --no-requeue it is cancelled: its pool has started the payload elsewhere."""
    sim = cluster(cpus=1)
    rules = policies(hosts=("bm1",), workloads=pilots(RungRule(Rung.PAUSE, within_s=1.0, for_s=None)))
    run = play(sim, rules)
    low = sim.submit("htc", 1000.0, requeue=False)
    run.until(lambda: running(sim, low), 30)
    take(sim, 300.0, None)
    run.until(lambda: sim.job(low).state is JobState.CANCELLED, 130)
    assert sim.audit() == []


def test_who_sends_another_pilot_has_the_old_one_cancelled() -> None:
    """`at_end: cancel`."""
    workloads = pilots(RungRule(Rung.PAUSE, within_s=1.0, for_s=None), at_end=AtEnd.CANCEL)
    run, low = one_pilot(workloads)
    take(run.sim, 300.0, None)
    run.until(lambda: run.sim.job(low).state is JobState.CANCELLED, 130)
    assert run.sim.audit() == []


def test_a_clock_that_was_set_back_makes_nobody_stay_for_hours() -> None:
    """The machine boots with another time: a start in the future says nothing of how long a host is taken."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE))
    take(run.sim, 60.0, 80.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.kill()
    run.sim.reboot_clock(-21600.0)
    run.start()
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 2000)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_a_long_stay_sends_it_to_a_host_that_is_free() -> None:
    """It is not paused until its patience is over first."""
    run, low = one_pilot(pilots(PAUSE, MIGRATE, REQUEUE), hosts=("bm1", "bm2"))
    host = run.world.managed["vn1"].host
    take(run.sim, 500.0, 600.0, host)
    run.until(lambda: running(run.sim, low) and run.world.managed["vn1"].host != host, 60)
    run.until(lambda: phase(run) is Phase.READY, 60)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_a_long_stay_throttles_where_no_other_host_is_free() -> None:
    """Its connections stay alive, and its patience is not touched."""
    run, low = one_pilot(pilots(THROTTLE, PAUSE, MIGRATE, REQUEUE))
    take(run.sim, 500.0, 600.0)
    run.until(lambda: phase(run) is Phase.THROTTLED, 10)
    assert "goes on with next to no CPU time" in run.world.managed["vn1"].reason
    run.until(lambda: phase(run) is Phase.READY, 600)
    run.until(lambda: run.sim.job(low).state is JobState.COMPLETED, 1200)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_a_long_stay_gives_it_back_at_once_where_nothing_else_is_left() -> None:
    """It starts over elsewhere instead of being stopped first and lost later."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE))
    take(run.sim, 500.0, 600.0)
    asked_s = run.now_s
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 20)
    assert run.now_s - asked_s < 20
    assert run.sim.audit() == []


@pytest.mark.parametrize("held_up", ["disk", "slurm"])
def test_a_long_stay_that_ends_early_gives_nothing_back(held_up: str) -> None:
    """It was to start over, which had to wait; by then only a budget keeps it from its host."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE))
    assert isinstance(run.journal, MemoryJournal)
    run.journal.full = held_up == "disk"
    order = run.sim.faults.fail("drain", UnreachableError("slurm", "no answer"), times=-1)
    high = take(run.sim, 10.0, 600.0)
    run.until(lambda: running(run.sim, high), 5)
    run.until(lambda: ended(run.sim, high), 20)
    usual = run.policies
    nobody = Budgets((Budget("0"),))
    run.policies = run.cycle.policies = replace(usual, budgets=nobody)
    run.journal.full = False
    order.end()
    run.run(30.0)
    assert (run.sim.job(low).state, phase(run)) == (JobState.SUSPENDED, Phase.PARKED)
    run.policies = run.cycle.policies = usual
    run.until(lambda: running(run.sim, low), 30)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_before_it_is_given_back_it_is_told() -> None:
    """By a signal; it ends by itself, and has a share of its CPUs until then."""
    told = pilots(PAUSE, REQUEUE, warn=WarnBy.SIGNAL, signal=JobSignal.INT, drain_s=10.0)
    run, low = one_pilot(told)
    run.sim.heeds(low, 3.0)
    high = take(run.sim, 500.0, 600.0)
    run.until(lambda: running(run.sim, high), 5)
    run.until(lambda: run.sim.job(low).state is JobState.FAILED, 15)
    assert run.sim.signals(low) == ["INT"]
    assert run.sim.audit() == []


def test_one_that_does_not_heed_the_signal_starts_anew_when_its_time_is_over() -> None:
    """It was told once."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE, warn=WarnBy.SIGNAL, drain_s=10.0))
    take(run.sim, 500.0, 600.0)
    asked_s = run.now_s
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 30)
    assert run.now_s - asked_s >= 10.0
    assert run.sim.signals(low) == ["TERM"]
    assert run.sim.audit() == []


def test_features_that_cannot_be_written_harm_nothing_else() -> None:
    """It is said once, in one sentence, also by explain; the job has its time, and starts anew after it."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE, warn=WarnBy.FEATURES, drain_s=10.0))
    said = "/run/backfill/jobfeatures/1/shutdowntime_job cannot be written (No space left on device)"
    run.sim.faults.fail("announce", DriverError("vn1", said), times=-1)
    high = take(run.sim, 500.0, 600.0)
    asked_s = run.now_s
    run.until(lambda: running(run.sim, high), 5)
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 30)
    assert run.now_s - asked_s >= 10.0
    problems = [r.body["problem"] for r in run.journal.read() if r.kind == "outcome" and r.body["problem"]]
    assert problems == [f"vn1: {said}"]
    assert run.sim.audit() == []


def test_owners_who_use_little_of_their_limits_are_known_for_it() -> None:
    """Three jobs of an hour's limit have taken a minute each: the fourth is waited for."""
    run, low = one_pilot(pilots(PAUSE, MIGRATE, REQUEUE))
    for _ in range(3):
        high = run.sim.submit("batch", 36.0, time_limit_s=3600.0, required_nodes=("bm2",))
        run.until(partial(ended, run.sim, high), 90)
    take(run.sim, 36.0, 3600.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    assert "expected to stay for 36 to 36 s" in run.world.managed["vn1"].reason
    run.until(lambda: phase(run) is Phase.READY, 90)
    assert run.sim.job(low).restarts == 0


def test_two_stops_soon_after_one_another_count_together() -> None:
    """Time at work pays back what a stop has cost, second for second."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE))
    take(run.sim, 60.0, 80.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.until(lambda: phase(run) is Phase.READY, 90)
    (owed,) = run.world.managed["vn1"].stood
    assert 55 < owed.spent_s < 70
    take(run.sim, 60.0, 80.0)
    run.until(lambda: run.sim.job(low).state is JobState.PENDING, 60)
    assert run.sim.audit() == []


@pytest.mark.parametrize(("like", "stay_s"), [(ReadyMade.OSPOOL, 40.0), (ReadyMade.CONDOR, 265.0)])
def test_a_pilot_on_disk_waits_for_as_long_as_it_can(like: ReadyMade, stay_s: float) -> None:
    """Nearly all of its patience, not what a slow way to disk would have left of it."""
    sim = cluster(cpus=1)
    rules = policies(
        hosts=("bm1",),
        workloads=Workloads((Workload("p", like=like),)),
        proof=Proof.MEMORY,
        answer_within_s=60.0,
    )
    run = play(sim, rules)
    low = sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, low), 30)
    run.run(3.0)
    take(sim, stay_s, stay_s)
    run.until(lambda: phase(run) is Phase.PARKED, 20)
    assert "it waits" in run.world.managed["vn1"].reason
    run.until(lambda: ended(sim, low), 2000)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_an_owner_of_whom_nothing_is_known_is_judged_as_the_others_are() -> None:
    """Whose jobs are short: the pilot waits for one of an hour by its limit."""
    run, low = one_pilot(pilots())
    for _ in range(3):
        run.sim.submit("batch", 10.0, time_limit_s=3600.0, user="known", required_nodes=("bm2",))
    run.until(lambda: run.world.owners.habits.shares("known") is not None, 120)
    run.sim.submit("batch", 60.0, time_limit_s=3600.0, user="new", required_nodes=("bm1",))
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.until(lambda: ended(run.sim, low), 2000)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_jobs_with_no_end_to_their_patience_are_as_they_were() -> None:
    """An entry that is like `default` changes nothing but, perhaps, the ladder."""
    run, low = one_pilot(Workloads((Workload("any", like=ReadyMade.DEFAULT, ladder=(PAUSE,)),)))
    take(run.sim, 500.0, 600.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.until(lambda: phase(run) is Phase.READY, 600)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_where_nobody_waits_the_guest_freezes_its_jobs_first() -> None:
    """Of two pilots the one without patience is ended in the guest, and the other one goes on."""
    both = Workloads((Workload("short", job_name="short*", stand_still_s=40.0, ladder=(PAUSE, REQUEUE)),))
    sim = cluster(cpus=2)
    flavour = Flavour(cpus=2, memory_mb=256)
    rules = policies(hosts=("bm1",), workloads=both, instances=replace(TWELVE, flavour=flavour))
    run = play(sim, rules)
    jobs = [sim.submit("htc", 300.0, name=name) for name in ("short", "long")]
    run.until(lambda: running(sim, *jobs), 30)
    run.run(3.0)
    run.cycle.take([HoldSet("bm1", run.now_s, on=True, reason="a test")])
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    run.until(lambda: sim.job(jobs[0]).restarts == 1, 60)
    assert sim.job(jobs[1]).state is JobState.SUSPENDED
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(partial(ended, sim, *jobs), 1000)
    assert [sim.job(job).restarts for job in jobs] == [1, 0]
    assert sim.audit() == []


@pytest.mark.parametrize("rungs", [(THROTTLE, PAUSE, REQUEUE), (THROTTLE, REQUEUE)])
def test_what_stands_still_is_not_throttled_beyond_its_patience(rungs: tuple[RungRule, ...]) -> None:
    """Its host is wanted again before it is back, so with next to no CPU it would still stand there."""
    sim = cluster(cpus=1)
    rules = policies(hosts=("bm1",), workloads=pilots(PAUSE), limits=Limits(destroys_per_min=6))
    run = Rehearsal(sim, rules, MemoryJournal(), costs=StepCosts(wake_again_s=5.0))
    low = sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, low), 60)
    run.run(3.0)
    take(sim, 50.0, 80.0)
    run.until(lambda: phase(run) is Phase.PARKED, 20)
    stopped_s = run.now_s
    run.policies = run.cycle.policies = replace(rules, workloads=pilots(*rungs))
    others = [take(sim, 70.0, 80.0) for _ in range(3)]
    run.until(lambda: sim.job(low).restarts == 1, 130)
    assert run.now_s - stopped_s < 115.0
    assert sim.job(others[-1]).state is not JobState.COMPLETED
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 3000)
    assert sim.audit() == []


def test_a_return_that_takes_too_long_lets_no_pilot_out() -> None:
    """Its guest runs again and does not answer: nobody outside has heard of it since it was stopped."""
    run, low = one_pilot(pilots(PAUSE))
    sim = run.sim
    take(sim, 60.0, 80.0)
    run.until(lambda: phase(run) is Phase.PARKED, 10)
    stopped_s = run.now_s
    order = sim.faults.fail("wake", UnreachableError("vn1", "its guest agent did not answer"), times=-1)
    run.until(lambda: sim.job(low).restarts == 1, 150)
    assert run.now_s - stopped_s < 115.0
    order.end()
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 3000)
    assert sim.audit() == []


@pytest.mark.parametrize("acts", [False, True], ids=["not asked", "its answer was lost"])
def test_tries_to_stop_it_do_not_count_against_its_patience_while_it_is_known_to_run(acts: bool) -> None:
    """Its host cannot be reached for longer than that; only if its guest was asked nobody knows."""
    run, low = one_pilot(pilots(RungRule(Rung.PAUSE, within_s=1.0)))
    sim = run.sim
    if acts:
        sim.faults.fail("freeze", UnreachableError("vn1", "no answer"), acts=True)
        sim.faults.fail("pause", UnreachableError("vn1", "no answer"))
    else:
        sim.cut_host("bm1")
    run.cycle.take([HoldSet("bm1", run.now_s, on=True, reason="a test")])
    run.run(2.0)
    sim.cut_host("bm1")
    run.run(98.0)
    sim.join_host("bm1")
    run.until(lambda: sim.job(low).state is not JobState.RUNNING, 30)
    run.run(2.0)
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 3000)
    assert sim.job(low).restarts == acts
    assert [v for v in sim.audit() if v.kind != "room"] == []


def test_what_a_guest_has_ended_stands_beside_nobody_when_its_return_fails() -> None:
    """The short one's copy is gone from the memory that it shared: the other one is tried again."""
    both = Workloads((Workload("short", job_name="short*", stand_still_s=40.0, ladder=(PAUSE, REQUEUE)),))
    sim = cluster(cpus=2)
    shape = replace(TWELVE, flavour=Flavour(cpus=2, memory_mb=256))
    run = play(sim, policies(hosts=("bm1",), workloads=both, instances=shape))
    jobs = [sim.submit("htc", 300.0, name=name) for name in ("short", "long")]
    run.until(lambda: running(sim, *jobs), 30)
    run.run(3.0)
    run.cycle.take([HoldSet("bm1", run.now_s, on=True, reason="a test")])
    run.until(lambda: sim.job(jobs[0]).restarts == 1, 90)
    sim.stop_file_server()
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(lambda: run.world.managed["vn1"].retry.returns > 0, 300)
    assert [held.id for held in run.world.managed["vn1"].held] == [jobs[1]]
    run.kill()
    run.start()
    run.run(5.0)
    assert [held.id for held in run.world.managed["vn1"].held] == [jobs[1]]
    sim.start_file_server()
    run.until(partial(ended, sim, *jobs), 2000)
    assert [sim.job(job).restarts for job in jobs] == [1, 0]
    assert sim.audit() == []


def test_an_old_journal_counts_no_patience_of_a_pilot_at_work() -> None:
    """By the copy it is just coming back; that was long ago, and it has worked since."""
    run, low = one_pilot(pilots(PAUSE, REQUEUE))
    old = MemoryJournal()
    high = take(run.sim, 40.0, 60.0)
    run.until(lambda: ended(run.sim, high), 60)
    run.until(lambda: phase(run) is Phase.RETURNING, 20)
    old.append(list(run.journal.read()))
    run.until(lambda: phase(run) is Phase.READY, 20)
    run.run(120.0)
    run.kill()
    anew = Rehearsal(run.sim, run.policies, old)
    anew.run(10.0)
    again = take(run.sim, 40.0, 60.0)
    anew.until(lambda: ended(run.sim, again), 90)
    anew.until(lambda: ended(run.sim, low), 1500)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


def test_a_pilot_that_an_old_journal_finds_on_its_way_arrives() -> None:
    """Its own host is taken for long, and the other has no room beside it: but it is not given up."""
    run, low = one_pilot(pilots(PAUSE, MIGRATE, REQUEUE), hosts=("bm1", "bm2"))
    host = run.world.managed["vn1"].host
    take(run.sim, 500.0, 600.0, host)
    run.until(lambda: phase(run) is Phase.MOVING, 60)
    run.run(0.5)
    run.kill()
    anew = Rehearsal(run.sim, run.policies, MemoryJournal())
    places = {place.host: place.state for place in anew.world.places_of("vn1")}
    assert places == {host: InstanceState.PAUSED, ({"bm1", "bm2"} - {host}).pop(): InstanceState.MIGRATING}
    anew.until(lambda: ended(run.sim, low), 1500)
    assert run.sim.job(low).restarts == 0
    assert run.sim.audit() == []


EIGHT = datetime(2024, 5, 13, 8, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("most", ["0", "50%"])
@pytest.mark.parametrize("for_s", [60.0, 1800.0])
def test_a_budget_that_outlasts_patience_pauses_no_pilot_in_vain(for_s: float, most: str) -> None:
    """Its end is known: a pilot that cannot wait for it goes back to the queue before it stands still.

    Where some may work on, one of them may end, so that it is paused all the same.
    """
    sim = cluster(cpus=1, start_s=EIGHT - 60.0)
    window = Budget(most, schedule="0 8 * * *", duration_s=for_s)
    limits = Limits(max_instances=2, destroys_per_min=6)
    rules = policies(workloads=pilots(PAUSE, REQUEUE), budgets=Budgets((window,)), limits=limits)
    run = play(sim, rules)
    lows = [sim.submit("htc", 900.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 50)
    run.run(EIGHT + 5.0 - sim.now_s)
    gone = [low for low in lows if sim.job(low).state is JobState.PENDING]
    aside = [m for m in run.world.managed.values() if m.phase is Phase.PARKED]
    in_vain = for_s > 100.0 and most == "0"
    assert len(gone) == (2 if in_vain else 0)
    assert len(aside) == (0 if in_vain else 2 if most == "0" else 1)
    said = [str(r.body) for r in run.journal.read() if "a budget is expected to hold for" in str(r.body)]
    assert said
    run.until(lambda: all(sim.job(low).state is JobState.COMPLETED for low in lows), 9000)
    assert sim.audit() == []


def parked_unsuspended() -> tuple[Rehearsal, str]:
    """A pilot that Slurm will not suspend stands still on a host that was closed."""
    sim = cluster(cpus=1)
    run = play(sim, policies(hosts=("bm1",), workloads=pilots(PAUSE), instances=TWELVE))
    low = sim.submit("htc", 600.0, name="pilot 1", het=True, requeue=False)
    run.until(lambda: running(sim, low), 30)
    run.cycle.take([HoldSet("bm1", run.now_s, on=True, reason="a test")])
    run.until(lambda: phase(run) is Phase.PARKED, 20)
    return run, low


def test_a_pilot_that_slurm_will_not_suspend_pays_back_from_when_its_guest_answers() -> None:
    """Its return waits for the file server for longer than it can stand still, and it works meanwhile."""
    run, low = parked_unsuspended()
    sim = run.sim
    sim.stop_file_server()
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(lambda: phase(run) is Phase.RETURNING, 20)
    run.run(100.0)
    assert phase(run) is Phase.RETURNING
    sim.start_file_server()
    run.until(lambda: phase(run) is Phase.READY, 60)
    run.cycle.take([HoldSet("bm1", run.now_s, on=True, reason="a test")])
    run.until(lambda: phase(run) is Phase.PARKED, 20)
    run.run(5.0)
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(lambda: ended(sim, low), 1500)
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.COMPLETED, 0)
    assert sim.audit() == []


def test_a_pilot_that_slurm_will_not_suspend_has_gone_on_once_its_guest_was_thawed() -> None:
    """The daemon ends before the guest has answered, and for longer than the pilot can stand still."""
    run, low = parked_unsuspended()
    sim = run.sim
    run.cycle.take([HoldSet("bm1", run.now_s, on=False, reason="a test")])
    run.until(lambda: at_work(run), 20)
    assert not run.world.managed["vn1"].woken_since
    run.kill()
    run.run(120.0)
    run.start()
    run.until(lambda: ended(sim, low), 1500)
    assert sim.audit() == []


def at_work(run: Rehearsal) -> bool:
    """Return True if the guest was thawed."""
    found = run.world.instances.get(("bm1", "vn1"))
    return found is not None and found.state is InstanceState.RUNNING
