"""With SlurmdTimeout=0 dead nodes are set DOWN by us in the usual time, and paused ones never."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.cluster import JobState, NodeBase
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.liveness import Liveness
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_eviction import cluster, policies, running

DAY_S = 86400.0
FOR_EVER = Ladder((RungRule(Rung.PAUSE, 1.0), RungRule(Rung.REQUEUE)))


def base(sim: SimulatedWorld, node: str) -> NodeBase:
    return sim.slurm.read_nodes([node])[node].base


def test_a_pause_of_a_day_is_no_death() -> None:
    """The host is busy for 24 hours; the paused node is never DOWN, and its job goes on after."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(FOR_EVER), hosts=("bm1",)), MemoryJournal(), poll_s=30.0)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 60)
    high = sim.submit("batch", DAY_S)
    run.until(lambda: running(run, high), 60)
    while sim.job(high).state is JobState.RUNNING:
        run.run(3600.0)
        assert base(sim, "vn1") is not NodeBase.DOWN
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_dead_node_is_set_down_in_the_usual_time() -> None:
    """A bare-metal node that fell silent: its job is requeued after 300 s and runs elsewhere."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal())
    job = sim.submit("batch", 1000.0)
    run.until(lambda: running(run, job), 30)
    (dead,) = sim.job(job).nodes
    sim.cut_node(dead)
    run.run(250.0)
    assert base(sim, dead) is not NodeBase.DOWN
    run.until(lambda: base(sim, dead) is NodeBase.DOWN, 100)
    node = sim.slurm.read_nodes([dead])[dead]
    assert node.reason == "backfill: it has not answered Slurm for 300 s"
    run.until(lambda: running(run, job), 150)  # Slurm lets a requeued job wait for two minutes
    assert sim.job(job).restarts == 1
    assert sim.job(job).nodes != (dead,)


def test_many_silent_nodes_are_no_dead_nodes() -> None:
    """Both of two hosts are silent: that looks like the network, so neither is set DOWN."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal())
    run.run(5.0)
    sim.cut_node("bm1")
    sim.cut_node("bm2")
    run.run(1000.0)
    assert {base(sim, host) for host in ("bm1", "bm2")} == {NodeBase.IDLE}
    refused = {r.subject: why(r) for r in run.cycle.last.refusals if r.wanted is Goal.SET_DOWN}
    assert set(refused) == {"bm1", "bm2"}
    assert "looks like a broken network" in refused["bm1"]


def test_silence_that_nobody_could_hear_does_not_count() -> None:
    """The daemon was down: a node counts as dead only after 300 s in which it was listened to."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal())
    run.run(5.0)
    sim.cut_node("bm1")
    run.run(200.0)
    run.kill()
    run.run(500.0)
    run.start()
    run.run(200.0)
    assert base(sim, "bm1") is NodeBase.IDLE
    run.run(200.0)
    assert base(sim, "bm1") is NodeBase.DOWN


def test_a_guest_that_falls_silent_is_replaced() -> None:
    """Its host answers, and nothing in the guest: it is removed and the job starts over."""
    sim = cluster()
    rule = Liveness(down_after_s=60.0)
    run = Rehearsal(sim, replace(policies(), liveness=rule), MemoryJournal())
    low = sim.submit("htc", 500.0)
    run.until(lambda: running(run, low), 30)
    (name,) = sim.job(low).nodes
    sim.cut_node(name)
    sim.faults.fail("wake", UnreachableError(name, "no answer"), subject=name, times=-1)
    run.until(lambda: sim.job(low).restarts == 1 and running(run, low), 300)
    sim.faults.clear()
    (name,) = sim.job(low).nodes
    assert run.world.managed[name].phase is Phase.READY
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 700)
    assert [v for v in sim.audit() if v.kind in ("twice", "stale")] == []


def test_a_guest_that_is_being_asked_has_time_to_answer() -> None:
    """It gave none twice; as long as it is asked once more it is not given up, and then it answers."""
    sim = cluster()
    run = Rehearsal(sim, replace(policies(), liveness=Liveness(down_after_s=60.0)), MemoryJournal())
    run.costs = replace(run.costs, wake_again_s=60.0)
    low = sim.submit("htc", 900.0)
    run.until(lambda: running(run, low), 120)
    (name,) = sim.job(low).nodes
    sim.cut_node(name)
    sim.faults.fail("wake", UnreachableError(name, "no answer"), subject=name, times=2)
    run.run(300.0)
    assert run.world.managed[name].phase is Phase.READY
    sim.cut_node(name, connected=True)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 1200)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_guest_that_slurm_alone_does_not_hear_keeps_its_work() -> None:
    """It answers its hypervisor: the network between them is broken, and its job goes on."""
    sim = cluster()
    run = Rehearsal(sim, replace(policies(), liveness=Liveness(down_after_s=60.0)), MemoryJournal())
    low = sim.submit("htc", 500.0)
    run.until(lambda: running(run, low), 30)
    (name,) = sim.job(low).nodes
    sim.cut_node(name)
    run.run(400.0)
    assert run.world.managed[name].phase is Phase.READY
    assert any(
        r.subject == name and "its guest answers its hypervisor" in why(r) for r in run.cycle.last.refusals
    )
    sim.cut_node(name, connected=True)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 700)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_liveness_can_be_left_to_slurm() -> None:
    """With down_after_s: 0 nobody is set DOWN by us."""
    sim = cluster()
    run = Rehearsal(sim, replace(policies(), liveness=Liveness(down_after_s=0.0)), MemoryJournal())
    run.run(5.0)
    sim.cut_node("bm1")
    run.run(2000.0)
    assert base(sim, "bm1") is NodeBase.IDLE
