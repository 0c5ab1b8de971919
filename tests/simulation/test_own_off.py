"""Machines of a job's own are switched off: jobs that were held for them are let go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.job_machines import MachinesState
from tests.simulation.policy_cluster import cluster, play, policies, running
from tests.simulation.test_own_machines import OWN, WORD, state


@pytest.mark.parametrize("before", [True, False])
def test_jobs_that_we_hold_are_let_go_once_nobody_makes_machines_for_them(before: bool) -> None:
    """Whether the daemon had known of them or job_submit.lua alone; a hold of somebody else stays."""
    sim = cluster(4)
    run = play(sim, policies(own_machines=replace(OWN, enabled=before, most=1)))
    held = {"held": True, "held_by_owner": True}
    jobs = [sim.submit("htc", 600.0, admin_comment=f"{WORD}:cpus=1,held=1", **held) for _ in range(3)]
    kept = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=1,held=1", held=True)
    if before:
        run.until(lambda: running(sim, jobs[0]), 60)
        run.kill()
        run.policies = policies(own_machines=replace(OWN, enabled=False))
        run.start()
    run.until(lambda: running(sim, *jobs), 100)
    assert f"(own_machines.enabled) {WORD}:cpus=1" in sim.slurm.admin_comment(jobs[2])
    releases = [r.subject for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "ReleaseJob"]
    assert sorted(releases) == sorted(jobs)
    assert sim.job(kept).reason == "JobHeldAdmin"


@pytest.mark.parametrize(
    ("word", "before"),
    [
        ("cpus=2", MachinesState.QUEUED),
        ("cpus=64", MachinesState.GIVEN_BACK),
        ("cpus=x", MachinesState.GIVEN_BACK),
    ],
)
def test_jobs_whose_order_waits_or_that_were_given_back_are_let_go_as_well(
    word: str, before: MachinesState
) -> None:
    """There is no room for the order, or never can be any, or the word cannot be read."""
    sim = cluster(4)
    high = [sim.submit("batch", 600.0, required_nodes=(host,)) for host in ("bm1", "bm2")]
    run = play(sim, policies(own_machines=OWN))
    run.until(lambda: running(sim, *high), 30)
    job = sim.submit("htc", 5.0, comment=f"{WORD}:{word}")
    run.until(lambda: state(run, job) is before, 30)
    run.run(20)
    assert state(run, job) is before
    assert sim.job(job).reason == "JobHeldAdmin"
    run.kill()
    run.policies = policies(own_machines=replace(OWN, enabled=False))
    run.start()
    run.until(lambda: sim.job(job).reason == "Resources", 60)
    run.until(lambda: not run.world.machines and not run.world.fleets, 60)
