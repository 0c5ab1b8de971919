"""Slurm will not let a job go on whose instance is back: nothing is lost, and it is said and retried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal, Refusal
from backfill.core.model.sentences import line
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running

REMEDY = "run the daemon as root or SlurmUser"
DENIED = RefusedError("job", "Access/permission denied", REMEDY)
NO_STATE = BusyError("job", "Requested operation not possible in this state")
UNKNOWN = NotFoundError("job", "Invalid job id specified")
ERRORS = pytest.mark.parametrize("error", [DENIED, NO_STATE, UNKNOWN], ids=["denied", "state", "unknown"])


def back(jobs: int, error: DriverError, *, requeue: bool) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """So many jobs of one instance stood still; Slurm will not resume the first, and the host is free."""
    sim = one_host(cpus=jobs)
    rules = policies(scale=Scale(idle_s=600))
    shape = replace(rules.instances, flavour=replace(rules.instances.flavour, cpus=jobs))
    run = play(sim, replace(rules, hosts=("bm1",), instances=shape))
    lows = [sim.submit("htc", 300.0, requeue=requeue) for _ in range(jobs)]
    run.until(lambda: running(sim, *lows), 60)
    high = sim.submit("batch", 20.0, required_nodes=("bm1",))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 30)
    sim.faults.fail("resume_job", error, subject=lows[0], times=-1)
    run.until(lambda: ended(sim, high), 60)
    return sim, run, lows


def said(run: Rehearsal, *goals: Goal) -> list[Refusal]:
    return [r for r in run.cycle.last.refusals if r.wanted in goals]


@ERRORS
@pytest.mark.parametrize("requeue", [True, False])
def test_it_stands_still_again_and_goes_on_when_slurm_lets_it(error: DriverError, requeue: bool) -> None:
    """For an hour: tried ever less often, with Slurm's words and the remedy in what is refused."""
    sim, run, (low,) = back(1, error, requeue=requeue)
    for _ in range(120):
        run.run(30.0)
        assert set(run.world.managed) == {"vn1"}
        assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    asked = [r for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "ResumeJob"]
    assert 3 <= len(asked) <= 90
    run.until(lambda: bool(phases(run, Phase.PARKED)), 300)
    assert sim.instance("vn1").state is InstanceState.PAUSED
    told = [line(r) for r in said(run, Goal.RETURN_TO)]
    assert any(error.problem in text and error.remedy in text for text in told)
    sim.faults.clear()
    run.until(lambda: ended(sim, low), 1500)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@ERRORS
def test_the_others_on_its_node_go_on_meanwhile(error: DriverError) -> None:
    """Two of three work to their ends; the third waits for Slurm, on a node that is kept for it."""
    sim, run, (stuck, *others) = back(3, error, requeue=False)
    run.until(lambda: running(sim, *others), 60)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    late = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, *others), 400)
    assert sim.instance("vn1").state is InstanceState.RUNNING
    assert run.world.managed["vn1"].evictions == 1
    assert [held.id for held in run.world.managed["vn1"].held] == [stuck]
    assert sim.job(late).state is JobState.PENDING
    told = [line(r) for r in said(run, Goal.JOB_GOES_ON) if r.about == stuck]
    assert any(error.problem in text and error.remedy in text for text in told)
    sim.faults.clear()
    run.until(lambda: ended(sim, stuck, late), 1500)
    assert sim.job(stuck).restarts == 0
    assert sim.audit() == []


def test_its_host_is_given_back_while_it_waits() -> None:
    """One goes on, one waits for Slurm, and then the host is wanted: both stand still, and come back."""
    sim, run, lows = back(2, DENIED, requeue=False)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: running(sim, high), 30)
    run.until(lambda: bool(phases(run, Phase.PARKED)), 30)
    assert {sim.job(low).state for low in lows} == {JobState.SUSPENDED}
    sim.faults.clear()
    run.until(lambda: ended(sim, high, *lows), 1500)
    assert {sim.job(low).restarts for low in lows} == {0}
    assert sim.audit() == []


def test_a_job_that_ends_while_slurm_will_not_resume_it_frees_its_node() -> None:
    """Its owner cancels it: the node takes others, and nothing is said of it any more."""
    sim, run, (stuck, other) = back(2, DENIED, requeue=False)
    run.until(lambda: bool(phases(run, Phase.READY)), 60)
    sim.user_cancel(stuck)
    late = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, other, late), 600)
    assert said(run, Goal.JOB_GOES_ON) == []
    assert sim.audit() == []


def test_a_node_that_slurm_will_not_undrain_is_asked_again_and_said() -> None:
    """Its jobs go on; when whoever forbade it mends that, the node takes jobs again by itself."""
    sim, run, (low,) = back(1, DENIED, requeue=False)
    sim.faults.clear()
    sim.faults.fail("undrain", RefusedError("vn1", "Access/permission denied", REMEDY), times=-1)
    run.until(lambda: running(sim, low), 60)
    run.run(150.0)
    told = [line(r) for r in said(run, Goal.UNDRAIN)]
    assert any("Access/permission denied" in text and REMEDY in text for text in told)
    sim.faults.clear()
    late = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, low, late), 900)
    assert sim.audit() == []


def test_a_wide_job_whose_resume_is_refused_waits_with_both_nodes() -> None:
    """Both of its instances run again, and Slurm says no: it goes on when Slurm says yes."""
    sim = cluster(cpus=1)
    run = play(sim, policies(scale=Scale(idle_s=600, warm=2)))
    low = sim.submit("htc", 300.0, num_nodes=2, requeue=False)
    run.until(lambda: running(sim, low), 60)
    pairs = (("bm1", 30.0), ("bm2", 60.0))
    highs = [sim.submit("batch", run_s, required_nodes=(host,)) for host, run_s in pairs]
    run.until(lambda: ended(sim, highs[0]), 60)
    sim.faults.fail("resume_job", DENIED, subject=low, times=-1)
    run.until(lambda: ended(sim, *highs), 90)
    run.run(900.0)
    assert sim.job(low).state is JobState.SUSPENDED
    told = [line(r) for r in said(run, Goal.JOB_GOES_ON, Goal.RETURN_TO)]
    assert any("Access/permission denied" in text for text in told)
    sim.faults.clear()
    run.until(lambda: ended(sim, low), 1500)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []
