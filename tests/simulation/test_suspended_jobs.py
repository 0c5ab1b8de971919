"""Who suspended a job decides who resumes it, and a job on several nodes goes on as a whole."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import ResumeJob
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running


def resumes(run: Rehearsal) -> Counter[str]:
    """How often each job was resumed by the daemon."""
    asked = (r.body for r in run.journal.read() if r.kind == "intent")
    return Counter(str(body["job_id"]) for body in asked if body["t"] == ResumeJob.__name__)


def said(sim: SimulatedWorld, job: str) -> str:
    """What the job's owner reads."""
    return sim.slurm.admin_comment(job)


# --- who suspended it ----------------------------------------------------------------------------


def stopped_beside_an_admins(ladder: Ladder | None = None) -> tuple[SimulatedWorld, Rehearsal, str, str, str]:
    """Two low jobs stand still on one host, of which an admin had suspended the first before."""
    sim = one_host(cpus=2)
    rules = replace(policies(), hosts=("bm1",))
    run = play(sim, rules if ladder is None else replace(rules, ladder=ladder))
    theirs, ours = (sim.submit("htc", 300.0) for _ in range(2))
    run.until(lambda: running(sim, theirs, ours), 60)
    sim.slurm.suspend_job(theirs)
    run.run(5.0)
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: len(phases(run, Phase.PARKED)) == 2, 30)
    return sim, run, theirs, ours, high


def test_what_an_admin_suspended_stays_suspended() -> None:
    """The host is taken and given back: our job goes on, theirs when they say so, and then ends."""
    sim, run, theirs, ours, high = stopped_beside_an_admins()
    run.until(lambda: ended(sim, high), 100)
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 30)
    run.run(60.0)
    assert sim.job(theirs).state is JobState.SUSPENDED
    assert running(sim, ours)
    assert resumes(run) == {ours: 1}
    assert "somebody else had suspended it" in said(sim, theirs)
    assert said(sim, ours).startswith("backfill: went on after a pause of ")
    sim.slurm.resume_job(theirs)
    run.until(lambda: ended(sim, theirs, ours), 600)
    assert {sim.job(job).restarts for job in (theirs, ours)} == {0}
    assert sim.audit() == []


def test_a_daemon_that_died_knows_whose_suspends_were_its_own() -> None:
    """Killed at many steps of the eviction: the admin's job stays suspended, ours goes on."""
    for steps in range(1, 40, 3):
        sim = one_host(cpus=2)
        journal = MemoryJournal()
        rules = replace(policies(), hosts=("bm1",))
        run = Rehearsal(sim, rules, journal)
        theirs, ours = (sim.submit("htc", 300.0) for _ in range(2))
        run.until(lambda: running(sim, theirs, ours), 60)  # noqa: B023 - used at once
        sim.slurm.suspend_job(theirs)
        run.run(5.0)
        high = sim.submit("batch", 60.0, required_nodes=("bm1",))
        for _ in range(steps):
            assert sim.next_s is not None
            sim.step_to(sim.next_s)
        run.kill()
        anew = Rehearsal(sim, rules, journal)
        anew.until(lambda: ended(sim, high, ours), 900)  # noqa: B023 - used at once
        assert sim.job(theirs).state is JobState.SUSPENDED, steps
        assert {sim.job(job).restarts for job in (theirs, ours)} == {0}, steps
        assert sim.audit() == []
        anew.kill()


def test_what_somebody_resumes_in_vain_is_ours_from_then_on() -> None:
    """An admin resumes theirs while its instance stands still: suspended again, and told."""
    sim, run, theirs, ours, high = stopped_beside_an_admins()
    sim.slurm.resume_job(theirs)
    run.run(5.0)
    assert sim.job(theirs).state is JobState.SUSPENDED
    refused = [r.body for r in run.journal.read() if r.kind == "refusal"]
    assert any(body["code"] == Code.JOB_RESUMED.value for body in refused)
    run.until(lambda: ended(sim, high, theirs, ours), 900)
    assert {sim.job(job).restarts for job in (theirs, ours)} == {0}
    assert sim.audit() == []


def test_what_an_admin_suspended_is_not_started_anew_by_the_ladder() -> None:
    """At the ladder's end it would begin at once although they had stopped it: it stays."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=5.0), RungRule(Rung.REQUEUE)))
    sim, run, theirs, ours, high = stopped_beside_an_admins(ladder)
    run.run(20.0)
    assert sim.job(ours).restarts == 1
    assert (sim.job(theirs).state, sim.job(theirs).restarts) == (JobState.SUSPENDED, 0)
    assert any("somebody else suspended it" in why(r) for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, high), 100)
    sim.slurm.resume_job(theirs)
    run.until(lambda: ended(sim, theirs, ours), 900)
    assert sim.audit() == []


def test_a_job_that_an_admin_resumed_in_time_is_ours_at_the_next_eviction() -> None:
    """It goes on by itself when its host is taken again before all of the return is done."""
    sim, run, theirs, ours, high = stopped_beside_an_admins()
    sim.faults.fail("prove", UnreachableError("vn1", "its agent is silent"), times=3)
    sim.faults.fail("wake", UnreachableError("vn1", "its agent is silent"), times=3)
    run.until(lambda: bool(phases(run, Phase.RETURNING)), 100)
    sim.slurm.resume_job(theirs)
    again = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, high, again, theirs, ours), 1500)
    assert {sim.job(job).restarts for job in (theirs, ours)} == {0}
    assert sim.audit() == []


def test_a_lost_journal_does_not_make_an_admins_suspend_ours() -> None:
    """The daemon's disk broke while both stood still: what its drain says tells whose stop is whose."""
    sim, run, theirs, ours, high = stopped_beside_an_admins()
    run.kill()
    anew = play(sim, run.policies)
    anew.until(lambda: ended(sim, high), 100)
    anew.until(lambda: ended(sim, ours), 900)
    assert (sim.job(theirs).state, sim.job(theirs).restarts) == (JobState.SUSPENDED, 0)
    assert resumes(anew) == {ours: 1}
    sim.slurm.resume_job(theirs)
    anew.until(lambda: ended(sim, theirs), 900)
    assert sim.audit() == []


@pytest.mark.parametrize("resumed", [False, True])
def test_a_lost_journal_knows_who_suspended_after_the_drain(resumed: bool) -> None:
    """An admin stopped it while it was only held back, and perhaps let it go on after our stop: the
    drain is older than both, and tells of them all the same."""
    rungs = (RungRule(Rung.THROTTLE, 1.0, 15.0), RungRule(Rung.PAUSE, 1.0))
    sim = one_host(cpus=1)
    run = play(sim, policies(hosts=("bm1",), ladder=Ladder(rungs)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: bool(phases(run, Phase.THROTTLED)), 30)
    sim.admin_suspend(low)
    run.until(lambda: bool(phases(run, Phase.PARKED)), 30)
    if resumed:
        sim.admin_resume(low)
    run.run(5.0)
    run.kill()
    anew = play(sim, run.policies)
    anew.until(lambda: ended(sim, high), 100)
    anew.run(60.0)
    assert sim.job(low).state is (JobState.RUNNING if resumed else JobState.SUSPENDED)
    if not resumed:
        sim.admin_resume(low)
    anew.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_an_old_journal_has_another_job_stand_still_with_it() -> None:
    """Of an earlier stop, which is over: the one that stands still now goes on all the same."""
    sim = one_host(cpus=1)
    run = play(sim, policies(hosts=("bm1",), scale=Scale(idle_s=300)))
    jobs, old = [sim.submit("htc", 60.0, at_s=sim.now_s + at_s) for at_s in (0.0, 10.0)], MemoryJournal()
    for job in jobs:
        run.until(lambda job=job: running(sim, job), 150)  # type: ignore[misc]
        high = sim.submit("batch", 20.0, required_nodes=("bm1",))
        run.until(lambda: bool(phases(run, Phase.PARKED)), 30)
        if job == jobs[0]:
            old.append(list(run.journal.read()))
            run.until(lambda high=high: ended(sim, high), 60)  # type: ignore[misc]
    run.kill()
    anew = Rehearsal(sim, run.policies, old)
    anew.until(lambda: ended(sim, *jobs), 900)
    assert {(sim.job(job).state, sim.job(job).restarts) for job in jobs} == {(JobState.COMPLETED, 0)}
    assert sim.audit() == []


# --- a job on two nodes --------------------------------------------------------------------------


def wide(ladder: Ladder | None = None) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A low job runs on two nodes, one on each host."""
    sim = cluster(cpus=1)
    rules = policies(scale=Scale(idle_s=600, warm=2))
    run = play(sim, rules if ladder is None else replace(rules, ladder=ladder))
    low = sim.submit("htc", 300.0, num_nodes=2)
    run.until(lambda: running(sim, low), 60)
    return sim, run, low


def taken(sim: SimulatedWorld, run: Rehearsal, host: str, run_s: float) -> str:
    """The host is given to another job for so long, and what was there stands still."""
    high = sim.submit("batch", run_s, required_nodes=(host,))
    run.until(lambda: any(m.host == host for m in standing(run)), 30)
    return high


def standing(run: Rehearsal) -> list[ManagedNode]:
    return [m for m in run.world.managed.values() if m.phase is Phase.PARKED]


def drained(sim: SimulatedWorld) -> set[str]:
    nodes = sim.slurm.observe().nodes
    return {name for name, node in nodes.items() if node.drained}


def crowd_of(sim: SimulatedWorld) -> int:
    """The most jobs that hold one virtual node."""
    jobs = sim.slurm.observe().jobs.values()
    held = Counter(name for job in jobs if job.holds_nodes for name in job.nodes)
    return max((count for name, count in held.items() if name.startswith("vn")), default=0)


def uncrowded_until_ended(sim: SimulatedWorld, *highs: str) -> None:
    """Go on step by step until these have ended; no virtual node is ever held by two jobs."""
    while not ended(sim, *highs):
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
        assert crowd_of(sim) <= 1


def test_the_other_node_of_a_stopped_job_takes_no_second_job() -> None:
    """One of two nodes is paused: the other is kept for the job, and both go on together."""
    sim, run, low = wide()
    high = taken(sim, run, "bm1", 60.0)
    assert drained(sim) == {"vn1", "vn2"}
    other = sim.submit("htc", 30.0)
    run.run(30.0)
    assert sim.job(other).state is JobState.PENDING
    assert any(why(r) == "job 1 waits for vn1" for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, high), 60)
    run.until(lambda: running(sim, low), 30)
    run.until(lambda: ended(sim, low, other), 900)
    assert sim.job(low).restarts == 0
    assert resumes(run) == {low: 1}
    assert sim.audit() == []


def test_no_node_is_free_for_a_moment() -> None:
    """At no instant is a node with a suspended job open to others: looked at after every event."""
    sim, run, low = wide()
    others = [sim.submit("htc", 20.0) for _ in range(3)]
    highs = []
    for host in ("bm1", "bm2"):
        highs.append(sim.submit("batch", 30.0, required_nodes=(host,)))
        uncrowded_until_ended(sim, *highs)
    run.until(lambda: ended(sim, low, *others), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_what_a_daemon_without_a_journal_pauses_for_its_host_stays_an_admins() -> None:
    """It is stopped before it is taken over: nothing of ours was told to Slurm, so theirs is theirs."""
    sim, run, low = wide()
    sim.admin_suspend(low)
    run.kill()
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    sim.step_to(sim.now_s + 30.0)  # its hook found nobody, and it began
    anew = play(sim, run.policies)
    anew.until(lambda: ended(sim, high), 100)
    anew.until(lambda: not standing(anew) and len(anew.world.managed) == 2, 100)
    anew.run(60.0)
    assert sim.job(low).state is JobState.SUSPENDED
    assert resumes(anew) == {}
    sim.admin_resume(low)
    anew.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert [v for v in sim.audit() if v.kind != "room"] == []


@pytest.mark.parametrize("first", ["bm1", "bm2"])
def test_both_nodes_pushed_aside_go_on_together(first: str) -> None:
    """The hosts come back one after the other, in either order: once, when both instances run."""
    sim, run, low = wide()
    second = "bm2" if first == "bm1" else "bm1"
    highs = [taken(sim, run, first, 60.0), taken(sim, run, second, 200.0)]
    run.until(lambda: ended(sim, highs[0]), 100)
    run.run(30.0)
    assert sim.job(low).state is JobState.SUSPENDED
    assert drained(sim) == {"vn1", "vn2"}
    (back,) = phases(run, Phase.READY)
    assert any(r.key == (back, Goal.JOB_GOES_ON, low) for r in run.cycle.last.refusals)
    assert run.world.managed[back].held
    run.until(lambda: ended(sim, highs[1]), 300)
    run.until(lambda: running(sim, low), 30)
    run.until(lambda: said(sim, low).startswith("backfill: went on after a pause of "), 5)
    run.until(lambda: not drained(sim), 30)
    assert not any(m.held for m in run.world.managed.values())
    run.until(lambda: ended(sim, low), 900)
    assert (sim.job(low).restarts, resumes(run)[low]) == (0, 1)
    assert sim.audit() == []


def test_both_hosts_free_at_the_same_instant() -> None:
    """Neither waits for the other for ever."""
    sim, run, low = wide()
    both = sim.submit("batch", 60.0, num_nodes=2)
    run.until(lambda: len(phases(run, Phase.PARKED)) == 2, 30)
    run.until(lambda: ended(sim, both), 100)
    run.until(lambda: running(sim, low), 30)
    run.until(lambda: not drained(sim), 30)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_the_node_that_is_back_is_pushed_aside_again_while_it_waits() -> None:
    """It knows still that the suspend was ours."""
    sim, run, low = wide()
    highs = [taken(sim, run, "bm1", 30.0), taken(sim, run, "bm2", 300.0)]
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    highs.append(taken(sim, run, "bm1", 30.0))
    run.until(lambda: ended(sim, *highs), 600)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("second_s", [30.0, 31.0, 60.0])
def test_a_wide_job_that_an_admin_suspended_stays_so(second_s: float) -> None:
    """Both of its nodes are pushed aside and come back, at the same instant or one after the other."""
    sim, run, low = wide()
    sim.slurm.suspend_job(low)
    run.run(3.0)
    pairs = (("bm1", 30.0), ("bm2", second_s))
    highs = [sim.submit("batch", run_s, required_nodes=(host,)) for host, run_s in pairs]
    run.until(lambda: ended(sim, *highs), 200)
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 60)
    run.run(60.0)
    assert (sim.job(low).state, resumes(run)) == (JobState.SUSPENDED, {})
    assert not drained(sim)
    sim.slurm.resume_job(low)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_what_slurm_refused_us_and_an_admin_did_is_theirs_also_without_a_journal() -> None:
    """Slurm would not suspend a paused job for us; the journal is lost, and then an admin does it."""
    sim, run, low = wide()
    sim.faults.fail("suspend_job", RefusedError(f"job {low}", "not supported"), times=-1)
    highs = [sim.submit("batch", 60.0, required_nodes=(host,)) for host in ("bm1", "bm2")]
    run.until(lambda: len(phases(run, Phase.PARKED)) == 2, 30)
    run.kill()
    anew = Rehearsal(sim, run.policies, MemoryJournal())
    anew.run(3.0)
    assert running(sim, low)
    assert not anew.world.managed
    sim.admin_suspend(low)
    sim.faults.clear()
    anew.until(lambda: ended(sim, *highs), 200)
    anew.until(lambda: len(phases(anew, Phase.READY)) == 2, 60)
    anew.run(60.0)
    assert (sim.job(low).state, resumes(anew)) == (JobState.SUSPENDED, {})
    sim.admin_resume(low)
    anew.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def _one_at_work() -> tuple[SimulatedWorld, Rehearsal, str]:
    """A low job works on the only host."""
    sim = one_host(cpus=1)
    run = play(sim, policies(hosts=("bm1",)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    return sim, run, low


@pytest.mark.parametrize("retried", [False, True])
def test_an_admin_who_is_just_before_our_own_call_did_it(
    monkeypatch: pytest.MonkeyPatch, retried: bool
) -> None:
    """Slurm has nothing left to do for our call; after a lost answer the suspend may be our own."""
    sim, run, low = _one_at_work()
    suspend = sim.slurm.suspend_job

    def overtaken(job_id: str) -> bool:
        monkeypatch.undo()
        if retried:
            suspend(job_id)
            raise UnreachableError("slurmctld", "no answer")
        sim.admin_suspend(job_id)
        return suspend(job_id)

    monkeypatch.setattr(sim.slurm, "suspend_job", overtaken)
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, high), 100)
    run.until(lambda: len(phases(run, Phase.READY)) == 1, 60)
    run.run(60.0)
    assert resumes(run) == ({low: 1} if retried else {})
    if not retried:
        sim.admin_resume(low)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("journal_lost", [False, True])
def test_an_admin_is_just_before_us_and_slurm_shows_the_job_to_nobody(
    monkeypatch: pytest.MonkeyPatch, journal_lost: bool
) -> None:
    """Only the answer to our call tells of it: that is noted, and told by the drain."""
    sim, run, low = _one_at_work()
    suspend = sim.slurm.suspend_job

    def overtaken(job_id: str) -> bool:
        monkeypatch.undo()
        sim.admin_suspend(job_id)
        unseen = sim.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
        sim.at(sim.now_s + 2.0, unseen.end)
        return suspend(job_id)

    monkeypatch.setattr(sim.slurm, "suspend_job", overtaken)
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: len(phases(run, Phase.PARKED)) == 1, 30)
    if journal_lost:
        run.run(3.0)
        run.kill()
        run = Rehearsal(sim, run.policies, MemoryJournal())
    run.until(lambda: ended(sim, high), 100)
    run.until(lambda: len(phases(run, Phase.READY)) == 1, 60)
    run.run(60.0)
    assert resumes(run) == {}
    sim.admin_resume(low)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_the_other_node_is_closed_also_while_slurm_does_not_show_it() -> None:
    """A reading lacks all nodes in the moment in which one of two is pushed aside."""
    sim, run, low = wide()
    run.world.apply(ch.NodeGone("vn2", run.now_s))
    others = [sim.submit("htc", 20.0) for _ in range(2)]
    high = sim.submit("batch", 30.0, required_nodes=(run.world.managed["vn1"].host,))
    uncrowded_until_ended(sim, high)
    run.until(lambda: ended(sim, low, *others), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_daemon_that_is_told_of_no_job_at_its_start_opens_no_node_that_one_waits_for() -> None:
    """Its drain names the job, and the books have the other node stand still with it."""
    sim, run, low = wide()
    high = taken(sim, run, "bm1", 60.0)
    run.until(lambda: len(drained(sim)) == 2, 30)
    others = [sim.submit("htc", 20.0) for _ in range(2)]
    run.kill()
    sim.faults.misread(Odd.HALF, times=2)
    run.start()
    uncrowded_until_ended(sim, high)
    run.until(lambda: ended(sim, low, *others), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_the_ladders_end_starts_a_wide_job_anew_once() -> None:
    """Both of its nodes are at the end of the ladder at the same instant: one requeue."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=20.0), RungRule(Rung.REQUEUE)))
    sim, run, low = wide(ladder)
    both = sim.submit("batch", 120.0, num_nodes=2)
    run.until(lambda: len(phases(run, Phase.PARKED)) == 2, 30)
    run.until(lambda: ended(sim, both, low), 1500)
    assert sim.job(low).restarts == 1


def test_a_daemon_that_dies_at_any_step_keeps_a_wide_job_whole() -> None:
    """Killed at many steps of two evictions and returns, and started again."""
    for steps in range(1, 120, 7):
        sim = cluster(cpus=1)
        journal = MemoryJournal()
        rules = policies(scale=Scale(idle_s=600, warm=2))
        run = Rehearsal(sim, rules, journal)
        low = sim.submit("htc", 300.0, num_nodes=2)
        run.until(lambda: running(sim, low), 60)  # noqa: B023 - used at once
        first = sim.submit("batch", 10.0, required_nodes=("bm1",))
        second = sim.submit("batch", 15.0, required_nodes=("bm2",))
        for _ in range(steps):
            assert sim.next_s is not None
            sim.step_to(sim.next_s)
            assert crowd_of(sim) <= 1
        run.kill()
        anew = Rehearsal(sim, rules, journal)
        anew.until(lambda: ended(sim, first, second, low), 1500)  # noqa: B023 - used at once
        assert sim.job(low).restarts == 0, steps
        assert sim.audit() == []
        anew.kill()


# --- ReturnToService -----------------------------------------------------------------------------


def test_what_stood_still_is_no_reboot() -> None:
    """With ReturnToService=1 slurmctld reckons from an uptime in which the stop is missing."""
    sim = one_host(cpus=1, manners=Manners(return_to_service=1))
    run = play(sim, replace(policies(), hosts=("bm1",)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    high = sim.submit("batch", 600.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, high), 900)
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_node_for_which_nobody_vouched_counts_as_rebooted() -> None:
    """As in Slurm itself: its suspended job is requeued and held."""
    sim = one_host(cpus=1, manners=Manners(return_to_service=1))
    run = play(sim, replace(policies(), hosts=("bm1",)))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    run.kill()
    sim.provider.pause("bm1", "vn1")
    sim.slurm.suspend_job(low)
    sim.clock.advance(600.0)
    sim.provider.thaw("bm1", "vn1")
    sim.provider.wake("bm1", "vn1", sim.clock.now())
    assert sim.job(low).reason == "JobHeldAdmin"
