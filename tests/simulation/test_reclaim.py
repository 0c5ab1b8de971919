"""Room in somebody else's cloud is given back: by its quota, by its owner's word, by one server."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.quantities import Resources
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_eviction import cluster, policies, ready, running


def burst(scale: Scale | None = None) -> tuple[SimulatedWorld, PolicySet]:
    """One pool of 4 CPUs that belongs to somebody else."""
    sim = cluster(hosts=())
    sim.add_host("east", cpus=4, node=False)
    return sim, replace(policies(), hosts=("east",), scale=scale or Scale(idle_s=60))


def full(jobs: int = 4, run_s: float = 200.0) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    sim, given = burst(Scale(idle_s=60, reclaim_within_s=30))
    run = Rehearsal(sim, given, MemoryJournal())
    ids = [sim.submit("htc", run_s) for _ in range(jobs)]
    run.until(lambda: running(run, *ids), 60)
    return sim, run, ids


def test_a_smaller_quota_is_obeyed_with_patience_and_no_job_is_lost() -> None:
    """Jobs get time to end; then they start over elsewhere, and each one ends once."""
    sim, run, ids = full()
    sim.hosts["east"].capacity = Resources(2, 4096)
    run.until(lambda: any(m.phase is Phase.DRAINING for m in run.world.managed.values()), 20)
    assert sum(m.doomed for m in run.world.managed.values()) == 2
    assert running(run, *ids)
    run.until(lambda: len(run.world.fleet.instances_on("east")) == 2, 60)
    run.until(lambda: all(sim.job(j).state is JobState.COMPLETED for j in ids), 900)
    assert len(run.world.fleet.instances_on("east")) <= 2
    assert sorted(sim.job(j).restarts for j in ids) == [0, 0, 1, 1]
    assert sim.audit() == []


def test_a_job_that_ends_in_time_is_not_requeued() -> None:
    """Draining takes no new jobs, and the old one ends by itself."""
    sim, run, ids = full(jobs=2, run_s=25.0)
    sim.hosts["east"].capacity = Resources(0, 0)
    run.until(lambda: not run.world.managed, 120)
    assert [sim.job(j).restarts for j in ids] == [0, 0]
    assert sim.audit() == []


def test_an_owner_names_how_many_may_stay_and_a_restart_remembers_it() -> None:
    """`backfill reclaim`: idle and young ones go first; nothing grows until it is undone."""
    sim, run, ids = full()
    run.cycle.take([ch.HoldSet("east", sim.now_s, True, "maintenance", keep=1)])
    run.until(lambda: len(run.world.fleet.instances_on("east")) == 1, 120)
    run.kill()
    run.start()
    run.run(60)
    assert len(run.world.fleet.instances_on("east")) == 1
    assert run.world.kept == {"east": (1, "maintenance")}
    run.cycle.take([ch.HoldSet("east", sim.now_s, False, "over", keep=1)])
    run.until(lambda: all(sim.job(j).state is JobState.COMPLETED for j in ids), 900)
    assert sim.audit() == []


def test_the_server_that_the_owner_marks_is_the_one_that_goes() -> None:
    """Although there is room for all."""
    sim, run, _ = full()
    marked = run.world.instances["east", "vn2"]
    seen = replace(marked, wanted_back="its host is repaired")
    run.cycle.take([ch.InstanceSeen(seen, sim.now_s)])
    run.cycle.decide()
    node = run.world.managed["vn2"]
    assert (node.phase, node.doomed) == (Phase.DRAINING, True)
    assert "its host is repaired" in node.reason
    assert not any(m.doomed for m in run.world.managed.values() if m.name != "vn2")


def test_harvest_and_burst_in_one_policy() -> None:
    """A high-priority job evicts on our host, work goes on in the cloud, everything ends once."""
    sim = cluster(hosts=("bm1",))
    sim.add_host("east", cpus=2, node=False)
    sim.hosts["east"].saves_paused = False
    run = Rehearsal(sim, replace(policies(), hosts=("bm1", "east")), MemoryJournal())
    low = [sim.submit("htc", 120.0) for _ in range(6)]
    run.until(lambda: ready(run, 4), 60)
    assert {m.host for m in run.world.managed.values()} == {"bm1", "east"}
    high = sim.submit("batch", 60.0, cpus=2)
    run.until(lambda: running(run, high), 30)
    assert not any(i.occupies_cpu for i in run.world.fleet.instances_on("bm1"))
    assert {i.state for i in run.world.fleet.instances_on("east")} == {InstanceState.RUNNING}
    run.until(lambda: all(sim.job(j).state is JobState.COMPLETED for j in [*low, high]), 2000)
    assert sim.audit() == []
