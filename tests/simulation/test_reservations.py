"""Reservations and maintenance in simulated time: seen ahead, kept clear, and over one day."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.gaps import Gaps
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.slurm.model import SimReservation
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.rehearsal import Rehearsal
from backfill.sim.scenarios.stage import SimulatedStage
from tests.simulation.test_eviction import cluster, policies, running

SCENARIO = """\
name: maintenance
hosts: [{names: "bm[1-2]", cpus: 2}]
policy:
  priorities: {low: [htc], high: [batch]}
  instances: {names: "vn[1-4]", addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 256}}
  ladder: [{rung: suspend, within_s: 60}]
  scale: {idle_s: 20}
reservations: [{nodes: bm1, at_s: 40s, for_s: 100s}]
jobs:
  - {name: grid, partition: htc, copies: 4, run_s: 90s}
  - {name: short, partition: batch, nodes: bm1, cpus: 2, run_s: 10s, limit_s: 15s}
  - {name: long, partition: batch, nodes: bm1, cpus: 2, run_s: 30s, limit_s: 60s, at_s: 5s}
expect: [{check: ended-once}, {check: nothing-left}]
limit_s: 900
"""


def reserve(sim: SimulatedWorld, in_s: float, for_s: float, *, maintenance: bool = True) -> None:
    start_s = sim.now_s + in_s
    sim.slurm.reserve(["bm1"], SimReservation(start_s, start_s + for_s, maintenance))


def test_slurm_starts_what_ends_before_and_nothing_else() -> None:
    """By their limits: the short job at once, the long one and the boundless after the end."""
    sim = cluster(hosts=("bm1",))
    reserve(sim, 40.0, 100.0)
    end_s = sim.now_s + 140.0
    short = sim.submit("batch", 10.0, time_limit_s=15.0, cpus=2)
    long = sim.submit("batch", 30.0, time_limit_s=60.0)
    boundless = sim.submit("batch", 10.0)
    sim.step_to(sim.now_s + 300.0)
    assert sim.job(short).start_s < end_s - 120.0
    assert sim.job(long).start_s >= end_s
    assert sim.job(boundless).start_s >= end_s
    flags = sim.slurm.observe().nodes["bm1"].flags
    assert not flags & {"MAINTENANCE", "RESERVED"}


@pytest.mark.parametrize(("maintenance", "flag"), [(True, "MAINTENANCE"), (False, "RESERVED")])
def test_a_node_tells_what_is_ahead_of_it(flag: str, *, maintenance: bool) -> None:
    """When it will be wanted, that it is, and nothing any more."""
    sim = cluster(hosts=("bm1",))
    start_s = sim.now_s + 50.0
    reserve(sim, 50.0, 10.0, maintenance=maintenance)
    sim.step_to(sim.now_s + 1.0)
    node = sim.slurm.observe().nodes["bm1"]
    assert (node.maintenance_s if maintenance else node.planned_s) == start_s
    assert flag not in node.flags
    sim.step_to(start_s)
    assert flag in sim.slurm.observe().nodes["bm1"].flags
    sim.step_to(start_s + 10.0)
    node = sim.slurm.observe().nodes["bm1"]
    assert (node.planned_s, node.maintenance_s, flag in node.flags) == (0.0, 0.0, False)


def test_an_instance_leaves_for_the_maintenance_and_comes_back() -> None:
    """It is aside while the host is worked on, and its job ends once."""
    sim = cluster(hosts=("bm1",))
    gaps = Gaps(boot_pays_s=10.0, clear_before_s=20.0)
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",), gaps=gaps), MemoryJournal())
    start_s = sim.now_s + 100.0
    reserve(sim, 100.0, 50.0)
    low = sim.submit("htc", 150.0)
    run.until(lambda: running(run, low), 30)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 100)
    assert start_s - 20.0 <= sim.now_s <= start_s - 10.0
    run.until(lambda: sim.now_s >= start_s + 49.0, 100)
    assert sim.instance("vn1").state is not InstanceState.RUNNING
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("first", [RungRule(Rung.PAUSE, for_s=None), RungRule(Rung.THROTTLE, for_s=None)])
def test_nothing_waits_in_the_memory_of_a_host_in_maintenance(first: RungRule) -> None:
    """Work on the host may well include its power: the work goes to disk before that begins."""
    sim = cluster(hosts=("bm1",))
    gaps = Gaps(boot_pays_s=10.0, clear_before_s=20.0)
    ladder = Ladder((first, RungRule(Rung.MIGRATE), RungRule(Rung.SUSPEND, for_s=None)))
    policy = replace(policies(ladder), hosts=("bm1",), gaps=gaps)
    run = Rehearsal(sim, policy, MemoryJournal())
    start_s = sim.now_s + 100.0
    reserve(sim, 100.0, 50.0)
    low = sim.submit("htc", 150.0)
    run.until(lambda: running(run, low), 30)
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 100)
    assert sim.now_s < start_s
    assert run.world.managed["vn1"].reason.startswith("host bm1 is being emptied for its maintenance")
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_ladder_without_a_way_to_disk_keeps_its_rung() -> None:
    """To requeue at once would lose for certain what the maintenance only may cost."""
    sim = cluster(hosts=("bm1",))
    ladder = Ladder((RungRule(Rung.PAUSE, for_s=None), RungRule(Rung.REQUEUE)))
    policy = replace(policies(ladder), hosts=("bm1",), gaps=Gaps(boot_pays_s=10.0))
    run = Rehearsal(sim, policy, MemoryJournal())
    reserve(sim, 60.0, 50.0)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 100)
    run.run(20.0)
    assert sim.instance("vn1").state is InstanceState.PAUSED
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0


@pytest.mark.parametrize(
    ("whole_jobs", "limit_s", "made"), [(False, 150.0, True), (True, 150.0, False), (True, 30, True)]
)
def test_demand_looks_as_far_ahead_as_jobs_are_long(limit_s: float, *, whole_jobs: bool, made: bool) -> None:
    """No instance for jobs that could not end before the host is wanted, where that is asked."""
    sim = cluster(hosts=("bm1",))
    gaps = Gaps(boot_pays_s=10.0, whole_jobs=whole_jobs)
    requeue = Ladder((RungRule(Rung.REQUEUE),))
    policy = replace(policies(requeue), hosts=("bm1",), gaps=gaps, scale=Scale(idle_s=5.0))
    run = Rehearsal(sim, policy, MemoryJournal())
    reserve(sim, 100.0, 50.0, maintenance=False)
    over_s = sim.now_s + 150.0
    low = sim.submit("htc", 20.0, time_limit_s=limit_s)
    run.run(30.0)
    assert bool(run.world.managed) is made
    refused = [why(r) for r in run.cycle.last.refusals if r.subject == "bm1"]
    assert any("less than 160 s" in reason for reason in refused) is not made
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 600)
    assert (sim.job(low).start_s < over_s) is made
    assert sim.audit() == []


def test_a_scenario_has_reservations(tmp_path: Path) -> None:
    """All jobs end once; the long high-priority one after the maintenance, the short one before."""
    path = tmp_path / "maintenance.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    stage = SimulatedStage(load_scenario(path))
    outcome = play(load_scenario(path), stage)
    assert [v for v in outcome.verdicts if not v.ok] == []
    starts = {name: stage.jobs()[i].start_s - outcome.start_s for name, i in outcome.ids.items()}
    assert starts["short"] < 25.0
    assert starts["long"] >= 140.0
