"""Jobs that Slurm will not suspend stand still with their instances all the same, and lose nothing.

All components of heterogeneous jobs are such jobs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase, RefusedSuspend, Way
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policies.unsuspendable import Unsuspendable
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running

WORDS = "Operation not permitted on component of heterogeneous job"
HET = RefusedError("job", WORDS)
LIMIT_S = 600.0
QUICK = Unsuspendable(slice_s=300.0, ahead_s=120.0)


def refusing(sim: SimulatedWorld, job: str, error: DriverError = HET) -> None:
    """Slurm will not suspend this job, ever."""
    sim.faults.fail("suspend_job", error, subject=job, times=-1)


def stopped(
    rule: Unsuspendable = QUICK,
    error: DriverError = HET,
    high_s: float = 3600.0,
    requeue: bool = True,
    **rules: object,
) -> tuple[SimulatedWorld, Rehearsal, str, str]:
    """A job with ten minutes that Slurm will not suspend stands still for so long."""
    sim = one_host(cpus=1)
    run = play(sim, replace(policies(unsuspendable=rule, **rules), hosts=("bm1",)))
    low = sim.submit("htc", 300.0, time_limit_s=LIMIT_S, requeue=requeue)
    run.until(lambda: running(sim, low), 60)
    refusing(sim, low, error)
    high = sim.submit("batch", high_s, required_nodes=("bm1",))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 60)
    return sim, run, low, high


def held_back(run: Rehearsal) -> RefusedSuspend:
    """The stop of the job that Slurm would not suspend."""
    (held,) = run.world.managed["vn1"].held
    assert held.refused is not None
    return held.refused


def refusals(run: Rehearsal, job: str) -> list[str]:
    found = run.cycle.last.refusals
    return [why(r) for r in found if r.wanted is Goal.SUSPEND_JOB and r.about == job]


def limit_s(sim: SimulatedWorld, job: str) -> float:
    found = sim.job(job).time_limit_s
    assert found is not None
    return found


def asked(run: Rehearsal, kind: str) -> list[dict[str, object]]:
    return [r.body for r in run.journal.read() if r.kind == "intent" and r.body["t"] == kind]


@pytest.mark.parametrize(
    "error", [HET, BusyError("job", "Job is in transition")], ids=["refused", "busy for ever"]
)
def test_the_stop_is_added_to_the_time_limit(error: DriverError) -> None:
    """It stands still for six times its limit, goes on, and has what it had, and not more."""
    sim, run, low, high = stopped(error=error)
    held = held_back(run)
    assert error.problem in held.words
    assert any(error.problem in reason for reason in refusals(run, low))
    run.until(lambda: ended(sim, high), 4000)
    assert sim.job(low).state is JobState.RUNNING
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    assert len(asked(run, "LimitJob")) <= 3600 / QUICK.slice_s + 3
    stop_s = sim.clock.now() - held.since_s
    assert 0 <= limit_s(sim, low) - LIMIT_S - stop_s < 90
    assert limit_s(sim, low) % 60 == 0
    run.until(lambda: "its time limit was raised by" in sim.slurm.admin_comment(low), 5)
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_its_owner_reads_what_is_done() -> None:
    """While it stands still: that the limit is raised, and not that nothing is counted."""
    sim, run, low, _ = stopped()
    run.run(5.0)
    said = sim.slurm.admin_comment(low)
    assert "stands still" in said
    assert "its time limit is raised" in said


def test_with_much_time_left_nothing_is_asked_of_slurm_until_the_return() -> None:
    """A short stop of a job with hours left: one update, of whole minutes, at its end."""
    sim = one_host(cpus=1)
    run = play(sim, replace(policies(), hosts=("bm1",)))
    low = sim.submit("htc", 300.0, time_limit_s=36000.0)
    run.until(lambda: running(sim, low), 60)
    refusing(sim, low)
    high = sim.submit("batch", 70.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, high), 200)
    run.until(lambda: ended(sim, low), 600)
    assert [body["limit_s"] for body in asked(run, "LimitJob")] == [36000.0 + 120.0]
    assert sim.audit() == []


def test_a_daemon_that_is_away_finds_the_job_alive() -> None:
    """For as long as `ahead_s`, at any time of the stop; and the stop is counted whole."""
    sim, run, low, high = stopped(Unsuspendable(slice_s=600.0, ahead_s=900.0))
    journal, rules = run.journal, run.policies
    assert isinstance(journal, MemoryJournal)
    for _ in range(3):
        run.run(120.0)
        run.kill()
        sim.clock.advance(890.0)
        run = Rehearsal(sim, rules, journal)
        assert sim.job(low).state is JobState.RUNNING
        run.run(5.0)
        assert run.world.managed["vn1"].held[0].refused
    held = held_back(run)
    run.until(lambda: ended(sim, high), 4000)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    assert 0 <= limit_s(sim, low) - LIMIT_S - (sim.clock.now() - held.since_s) < 90
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0


def test_an_update_of_which_the_outcome_was_lost_is_not_granted_twice() -> None:
    """Slurm acted and did not answer: limits are absolute, so that asking again changes nothing."""
    sim, run, low, high = stopped()
    lost = UnreachableError("slurmctld", "did not answer")
    sim.faults.fail("set_time_limit", lost, times=4, acts=True)
    held = held_back(run)
    run.until(lambda: ended(sim, high), 4000)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    assert 0 <= limit_s(sim, low) - LIMIT_S - (sim.clock.now() - held.since_s) < 90
    assert sim.audit() == []


@pytest.mark.parametrize("limit", [300.0, 90000.0])
def test_a_limit_that_somebody_else_sets_meanwhile_is_theirs(limit: float) -> None:
    """Lowered: the stop is added to that. Raised beyond ours: it stays as they said."""
    sim, run, low, high = stopped(high_s=900.0)
    held = held_back(run)
    run.run(1.0)
    sim.slurm.set_time_limit(low, limit)
    run.until(lambda: ended(sim, high), 4000)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    if limit > LIMIT_S:
        assert limit_s(sim, low) == limit
    else:
        assert 0 <= limit_s(sim, low) - limit - (sim.clock.now() - held.since_s) < 90


def test_with_wait_its_time_runs_and_that_is_said() -> None:
    """The site wants it so: Slurm ends the job at its limit, and nobody said otherwise."""
    sim, run, low, _ = stopped(Unsuspendable(way=Way.WAIT))
    run.run(5.0)
    assert any("its time limit runs" in reason for reason in refusals(run, low))
    assert "its time limit runs meanwhile" in sim.slurm.admin_comment(low)
    run.until(lambda: sim.job(low).state is JobState.TIMEOUT, 700)
    assert asked(run, "LimitJob") == []
    run.until(lambda: not run.world.managed, 300)


def test_with_requeue_it_starts_anew_at_once() -> None:
    """And its owner reads that."""
    sim, run, low, high = stopped(Unsuspendable(way=Way.REQUEUE))
    run.until(lambda: sim.job(low).restarts == 1, 30)
    assert "starts over" in sim.slurm.admin_comment(low)
    run.until(lambda: limit_s(sim, low) == LIMIT_S, 30)
    run.until(lambda: ended(sim, high, low), 6000)
    assert sim.job(low).restarts == 1


def test_with_requeue_a_job_that_may_not_start_anew_gets_its_time() -> None:
    """--no-requeue: it stands still, its limit is raised, and it goes on."""
    sim, run, low, high = stopped(replace(QUICK, way=Way.REQUEUE), requeue=False)
    run.until(lambda: ended(sim, high), 4000)
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_with_move_it_goes_on_elsewhere_at_once() -> None:
    """Without `migrate` in the ladder, and without waiting for its own host."""
    sim = cluster(cpus=1)
    run = play(sim, policies(unsuspendable=replace(QUICK, way=Way.MOVE)))
    low = sim.submit("htc", 300.0, time_limit_s=LIMIT_S)
    run.until(lambda: running(sim, low), 60)
    refusing(sim, low)
    host = run.world.managed["vn1"].host
    sim.submit("batch", 3600.0, required_nodes=(host,))
    run.until(lambda: run.world.managed["vn1"].host != host, 60)
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def wide(rule: Unsuspendable = QUICK) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job on two nodes that Slurm will not suspend."""
    sim = cluster(cpus=1)
    rules: PolicySet = policies(unsuspendable=rule, scale=Scale(idle_s=600, warm=2))
    run = play(sim, rules)
    low = sim.submit("htc", 300.0, num_nodes=2, time_limit_s=LIMIT_S)
    run.until(lambda: running(sim, low), 60)
    refusing(sim, low)
    return sim, run, low


def test_stops_of_two_nodes_that_overlap_are_granted_once() -> None:
    """One for 10 to 20 min, the other for 15 to 40: the job stood still from 10 to 40."""
    sim, run, low = wide()
    began_s = sim.clock.now()
    first = sim.submit("batch", 600.0, required_nodes=("bm1",))
    run.run(300.0)
    second = sim.submit("batch", 1500.0, required_nodes=("bm2",))
    run.until(lambda: ended(sim, first, second), 3000)
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 60)
    assert 0 <= limit_s(sim, low) - LIMIT_S - (sim.clock.now() - began_s) < 90
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_two_hosts_given_back_at_the_same_instant() -> None:
    """Neither leaves the correction to the other."""
    sim, run, low = wide()
    began_s = sim.clock.now()
    both = sim.submit("batch", 900.0, num_nodes=2)
    run.until(lambda: ended(sim, both), 3000)
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 60)
    assert 0 <= limit_s(sim, low) - LIMIT_S - (sim.clock.now() - began_s) < 90


def test_an_instance_goes_to_disk_and_comes_back_with_such_a_job() -> None:
    """All rungs work as for any other job."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0), RungRule(Rung.SUSPEND)))
    sim, run, low, high = stopped(ladder=ladder)
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 200)
    run.until(lambda: ended(sim, high), 4000)
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []
