"""Machines of jobs in the report: each start cut in the steps of the papers."""

from __future__ import annotations

from backfill.core.policies.own_machines import OwnMachines
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.own_starts import OwnStart
from backfill.ui.report.page import PageHead, report_html
from backfill.ui.report.timeline import Chart
from tests.simulation.policy_cluster import cluster, ended, play, policies, running

WORD = "backfill-vm"


def begin(**rules: object) -> tuple[SimulatedWorld, Rehearsal]:
    sim = cluster(4)
    own = OwnMachines(enabled=True, inside=("batch",), respawns=0)
    return sim, play(sim, policies(**{"own_machines": own, **rules}))


def story(run: Rehearsal) -> Chart:
    return timeline_of(run.journal.read())


def took(own: OwnStart) -> dict[str, float | None]:
    return dict(own.steps)


def test_the_steps_of_a_jobs_machines_fill_the_time_until_it_begins() -> None:
    """With devices and without: none overlaps another, and together they are the whole."""
    sim, run = begin()
    plain = sim.submit("htc", 10.0, num_nodes=2, cpus=2, comment=f"{WORD}:cpus=1,mem=256")
    lent = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,mem=256,ivshmem=16")
    run.until(lambda: ended(sim, plain, lent), 200)
    found = {own.job: own for own in story(run).own}
    assert set(found) == {plain, lent}
    assert took(found[plain])["hotplug"] is None
    assert took(found[lent])["hotplug"] is not None
    for own in found.values():
        assert own.total_s is not None
        assert own.total_s > 0
        parts = sum(s for s in took(own).values() if s is not None)
        assert abs(parts - own.total_s) < 1e-6
    page = report_html(story(run), PageHead("Own machines"))
    assert "<h2>Machines of jobs</h2>" in page
    assert f"job {plain}: 2 machines of 1 CPUs and 256 MB" in page


def test_machines_on_the_nodes_of_a_job_are_told_as_such() -> None:
    """Their start ends when the job knows of them."""
    sim, run = begin()
    job = sim.submit("batch", 60.0, num_nodes=2, cpus=8, exclusive=True, comment=WORD)
    run.until(lambda: bool(story(run).own) and story(run).own[0].total_s is not None, 60)
    (own,) = story(run).own
    assert (own.job, own.inside) == (job, True)
    assert "on its nodes" in report_html(story(run), PageHead("Inside"))


def test_what_never_began_has_its_reason() -> None:
    """Instead of times."""
    sim, run = begin()
    job = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=64")
    run.run(20.0)
    (own,) = story(run).own
    assert (own.total_s, running(sim, job)) == (None, False)
    assert "can never be had" in report_html(story(run), PageHead("Never"))
