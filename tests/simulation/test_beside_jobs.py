"""Stopped work returns beside a job that leaves it room, as it would have stayed, and never into its room."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState, Node
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet, Proof
from backfill.drivers.simulated.slurm.model import SimNode
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import (
    STAY,
    TWELVE,
    ended,
    one_host,
    phases,
    play,
    policies,
    ready,
    running,
)

NEEDED = Victims(extent=Extent.NEEDED)
SLOW = Ladder((RungRule(Rung.THROTTLE, within_s=1.0), RungRule(Rung.PAUSE)))
SAVE = Ladder((RungRule(Rung.SUSPEND, within_s=60.0), RungRule(Rung.REQUEUE)))
BIG = replace(TWELVE, flavour=Flavour(cpus=1, memory_mb=1000))


def rules(**others: object) -> PolicySet:
    return policies(**{"hosts": ("bm1",), "victims": NEEDED, **others})


def stopped(
    given: PolicySet, cpus: int = 2, memory_mb: int = 100
) -> tuple[SimulatedWorld, Rehearsal, list[str], str]:
    """Two jobs stand still for two others that have all CPUs; the one with so many stays for long."""
    sim = one_host()
    run = play(sim, given)
    lows = [sim.submit("htc", 300.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    run.run(5.0)
    sim.submit("batch", 2000.0, cpus=cpus, memory_mb=memory_mb)
    high = sim.submit("batch", 60.0, cpus=4 - cpus, memory_mb=100)
    run.until(lambda: running(sim, high), 30)
    assert ready(run) == 0
    run.until(lambda: ended(sim, high), 90)
    return sim, run, lows, "3"


@pytest.mark.parametrize("ladder", [STAY, SAVE, SLOW])
@pytest.mark.parametrize("proof", list(Proof))
def test_work_returns_beside_a_small_job(ladder: Ladder, proof: Proof) -> None:
    """One of two jobs has gone, and the other one leaves two CPUs, and memory enough."""
    sim, run, lows, small = stopped(rules(ladder=ladder, proof=proof), memory_mb=1000)
    run.until(lambda: ended(sim, *lows), 600)
    assert sim.job(small).state is JobState.RUNNING
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_only_as_many_return_as_there_is_room_for() -> None:
    """Three CPUs of four are given away: one comes back, and the other one reads why it does not."""
    sim, run, lows, _ = stopped(rules(), cpus=3)
    run.run(30.0)
    assert (ready(run), len(phases(run, Phase.PARKED))) == (1, 1)
    (why,) = [r.code for r in run.cycle.last.refusals if r.wanted is Goal.RETURN_TO]
    assert why is Code.HOST_TAKEN
    run.until(lambda: any(ended(sim, low) for low in lows), 400)
    run.until(lambda: ended(sim, *lows), 600)
    assert sim.audit() == []


@pytest.mark.parametrize(("memory_mb", "back"), [(2000, 2), (2700, 1), (3500, 0)])
def test_memory_has_to_be_free_as_well(memory_mb: int, back: int) -> None:
    """Of 4096 MB the job has so many, and each instance takes 1000."""
    given = rules(instances=BIG, ladder=SAVE, proof=Proof.MEMORY)
    sim, run, _, _ = stopped(given, cpus=1, memory_mb=memory_mb)
    run.run(60.0)
    assert ready(run) == back
    # Its memory may not have been written yet as the hook's time was over; what comes back is our deed.
    assert [found for found in sim.audit() if found.text.startswith("instance")] == []


def test_what_is_on_disk_does_not_come_back_beside_a_job_of_unknown_memory() -> None:
    """Slurm counts none there: nobody has proven that there is any. What is in memory takes no more."""
    for ladder, back in ((SAVE, 0), (STAY, 2)):
        sim, run, _, _ = stopped(rules(ladder=ladder), memory_mb=0)
        run.run(60.0)
        assert ready(run) == back
        assert sim.audit() == []


def test_work_that_returns_makes_way_again_before_a_job_starts() -> None:
    """Whatever moment of the return the next job comes at: it starts in time, and nobody is in its way."""
    for after_s in (0.0, 0.1, 0.3, 0.5, 1.0, 1.5, 2.0, 3.0):
        sim, run, lows, _ = stopped(rules(), cpus=1)
        next_ = sim.submit("batch", 50.0, at_s=sim.now_s + after_s, cpus=3, memory_mb=100)
        run.until(lambda next_=next_, sim=sim: ended(sim, next_), 70)  # type: ignore[misc]
        run.until(lambda lows=lows, sim=sim: ended(sim, *lows), 900)  # type: ignore[misc]
        assert [sim.job(low).restarts for low in lows] == [0, 0]
        assert sim.audit() == [], after_s


def test_a_return_waits_for_slurms_word_as_those_at_work_do() -> None:
    """A job of one CPU comes beside those that are just returning: they go on, and do not stop for it."""
    sim, run, lows, _ = stopped(rules(comeback=Comeback(settle_s=5.0)), cpus=1)
    run.until(lambda: bool(phases(run, Phase.RETURNING)), 30)
    sim.submit("batch", 50.0, cpus=1, memory_mb=100)
    run.until(lambda: ready(run) == 2, 20)
    run.until(lambda: ended(sim, *lows), 600)
    stops = [r for r in run.journal.read() if r.body.get("t") == "PauseInstance"]
    assert len(stops) == 2
    assert sim.audit() == []


def test_the_ladder_does_not_end_for_work_that_will_return_beside_a_job() -> None:
    """It only waits until its host has settled: to start over would lose what comes back in a moment."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=80.0), RungRule(Rung.REQUEUE)))
    sim, run, lows, _ = stopped(rules(ladder=ladder, comeback=Comeback(settle_s=30.0)))
    run.until(lambda: ended(sim, *lows), 900)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_a_drain_of_a_moment_ends_no_ladder_beside_a_job() -> None:
    """The ladder's time is over by then, and work only waits until its host has settled."""
    sim, run, lows = settling()
    sim.admin_drain("bm1", "a mistake")
    run.run(2.5)
    assert run.world.nodes["bm1"].drained
    sim.admin_drain("bm1", "")
    run.until(lambda: ended(sim, *lows), 900)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_a_host_that_is_planned_for_ends_no_ladder_beside_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does that, however long Slurm shows it: the flag comes and goes with each pass of its scheduler."""
    sim, run, lows = settling()
    plain = SimNode.view
    with monkeypatch.context() as patch:
        patch.setattr(SimNode, "view", lambda node: _planned(plain(node)))
        run.until(lambda: "PLANNED" in run.world.nodes["bm1"].flags, 60)
        run.run(2.5)
    run.until(lambda: ended(sim, *lows), 900)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def _planned(seen: Node) -> Node:
    return replace(seen, flags=seen.flags | {"PLANNED"}) if seen.name == "bm1" else seen


def settling() -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Two jobs stand still at the end of their ladder, beside a small one, until their host has settled."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=80.0), RungRule(Rung.REQUEUE)))
    sim, run, lows, _ = stopped(rules(ladder=ladder, comeback=Comeback(settle_s=120.0)))
    run.run(60.0)
    return sim, run, lows


@pytest.mark.parametrize("extent", list(Extent))
def test_where_jobs_have_a_drained_host_the_ladder_ends_although_they_leave_room(extent: Extent) -> None:
    """Nobody comes back beside a job there: to wait for that would take as long as the job does."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=80.0), RungRule(Rung.REQUEUE)))
    sim, run, lows = drained(ladder, extent)
    run.until(lambda: [sim.job(low).restarts for low in lows] == [1, 1], 60)
    assert sim.audit() == []


def test_a_drain_that_is_lifted_before_the_ladder_ends_lets_work_return_beside_a_job() -> None:
    """And until then it reads that the host is drained."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=300.0), RungRule(Rung.REQUEUE)))
    sim, run, lows = drained(ladder, Extent.NEEDED)
    run.run(100.0)
    assert {r.code for r in run.cycle.last.refusals if r.wanted is Goal.RETURN_TO} == {Code.NODE_SHUT}
    sim.admin_drain("bm1", "")
    run.until(lambda: ended(sim, *lows), 600)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def drained(ladder: Ladder, extent: Extent) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Two jobs stand still on a host that is drained while a job of two of its four CPUs goes on there."""
    sim = one_host()
    run = play(sim, rules(ladder=ladder, victims=Victims(extent=extent)))
    lows = [sim.submit("htc", 300.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    run.run(5.0)
    sim.submit("batch", 20000.0, cpus=2, memory_mb=100)
    high = sim.submit("batch", 60.0, cpus=2, memory_mb=100)
    run.until(lambda: running(sim, high), 30)
    sim.admin_drain("bm1", "bad DIMM")
    run.until(lambda: ended(sim, high), 90)
    return sim, run, lows


def test_with_the_whole_host_cleared_nobody_returns_beside_a_job() -> None:
    """`extent: host`: as before."""
    _, run, _, _ = stopped(rules(victims=Victims()), cpus=1)
    run.run(60.0)
    assert ready(run) == 0
    assert {i.state for i in run.world.fleet.instances_on("bm1")} == {InstanceState.PAUSED}


@pytest.mark.parametrize(("cpus", "back"), [(3, 0), (2, 2)])
def test_a_jobs_own_machines_come_back_beside_a_job_together_or_not_at_all(cpus: int, back: int) -> None:
    """Where there is room for one of two, it would only wait there for its fellow, and be stopped again."""
    sim = one_host()
    run = play(sim, rules(own_machines=OwnMachines(enabled=True)))
    job = sim.submit("htc", 300.0, cpus=2, num_nodes=2, comment="backfill-vm:cpus=1,mem=256")
    run.until(lambda: running(sim, job), 60)
    run.run(5.0)
    sim.submit("batch", 2000.0, cpus=cpus, memory_mb=100)
    high = sim.submit("batch", 60.0, cpus=4 - cpus, memory_mb=100)
    run.until(lambda: ended(sim, high), 90)
    run.run(30.0)
    assert ready(run) == back
    done = len(list(run.journal.read()))
    run.run(60.0)
    assert len(list(run.journal.read())) < done + 30
    assert sim.job(job).restarts == 0
    assert sim.audit() == []
