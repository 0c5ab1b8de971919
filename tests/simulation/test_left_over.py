"""Slurm shows nodes of ours that neither our books nor any host knows, as after a lost journal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import DeleteNode
from backfill.core.model.cluster import JobState, Node, NodeBase
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.model.sentences import why
from backfill.core.policies.limits import Limits
from backfill.core.policies.liveness import Liveness
from backfill.core.policies.scale import Scale
from backfill.core.reconcile.planner import plan
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, play, policies, running


def without_a_trace() -> tuple[SimulatedWorld, Rehearsal]:
    """The daemon's disk broke, and an instance with its job died before the next daemon saw it."""
    sim = cluster(cpus=2)
    rules = policies(
        scale=Scale(idle_s=30),
        liveness=Liveness(down_after_s=60.0, at_most_percent=100),
        limits=Limits(missing_s=120.0),
    )
    run = play(sim, rules)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    run.kill()
    sim.crash_instance("vn1")
    host = sim.instance("vn1").host
    sim.provider.delete(host, "vn1")
    return sim, play(sim, rules)


def test_such_a_node_leaves_slurm_when_nothing_speaks_for_it_any_more() -> None:
    """Its job begins anew as its node is set DOWN; after two more minutes its name is free again."""
    sim, run = without_a_trace()
    run.until(lambda: any(r.code is Code.LEFT_OVER for r in run.cycle.last.refusals), 120)
    assert "vn1" in sim.nodes
    run.until(lambda: "vn1" not in sim.nodes, 300)
    run.until(lambda: ended(sim, "1"), 400)
    run.until(lambda: not run.world.managed, 300)
    assert sim.nodes == {"bm1", "bm2"}


def test_while_a_host_is_not_read_the_node_stays() -> None:
    """Its instance may be there."""
    sim, run = without_a_trace()
    sim.cut_host("bm2")
    run.run(900.0)
    assert "vn1" in sim.nodes
    told = [r for r in run.cycle.last.refusals if r.subject == "vn1" and r.wanted is Goal.REMOVAL]
    assert any("bm2 has not been read since" in why(r) for r in told)
    sim.join_host("bm2")
    run.until(lambda: "vn1" not in sim.nodes, 300)


def test_where_nodes_are_never_set_down_for_their_silence_its_job_begins_anew_all_the_same() -> None:
    """It is not silence that tells: every host has been read, and none has it."""
    sim, _ = without_a_trace()
    run = play(sim, policies(liveness=Liveness(down_after_s=0.0), limits=Limits(missing_s=120.0)))
    run.until(lambda: sim.job("1").restarts == 1, 300)
    run.until(lambda: ended(sim, "1"), 600)
    run.until(lambda: not run.world.managed and "vn1" not in sim.nodes, 600)
    assert sim.audit() == []


def test_one_that_may_stand_still_on_a_host_that_is_not_named_waits_for_a_person() -> None:
    """A paused instance is silent by nature; set DOWN, its node would lose intact work."""
    sim = cluster(cpus=2)
    rules = policies(
        liveness=Liveness(down_after_s=60.0, at_most_percent=100), limits=Limits(missing_s=120.0)
    )
    run = play(sim, rules)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    host = run.world.managed["vn1"].host
    sim.submit("batch", 2000.0, required_nodes=(host,))
    run.until(lambda: sim.job(low).state is JobState.SUSPENDED, 30)
    run.kill()
    (other,) = {"bm1", "bm2"} - {host}
    sim.cut_host(host)
    anew = play(sim, replace(rules, hosts=(other,)))
    anew.run(1000.0)
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    (told,) = [why(r) for r in anew.cycle.last.refusals if r.code is Code.LEFT_OVER_STILL]
    assert f"scontrol requeue {low}" in told
    anew.kill()
    sim.join_host(host)
    whole = play(sim, rules)
    whole.until(lambda: ended(sim, low), 3000)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_record_of_a_failure_keeps_no_node_in_slurm() -> None:
    """One reading without nodes, just after the start, takes nothing away that was taken over."""
    sim = cluster(cpus=2)
    rules = policies(limits=Limits(missing_s=120.0), scale=Scale(idle_s=600, warm=1))
    run = play(sim, rules)
    run.until(lambda: any(m.phase is Phase.READY for m in run.world.managed.values()), 60)
    run.kill()
    run.journal = MemoryJournal()
    run.start()
    run.until(lambda: "vn1" in run.world.managed, 60)
    assert run.world.managed["vn1"].proof.proven_s is None
    run.kill()
    sim.faults.misread(Odd.NO_NODES)
    run.start()
    run.run(60.0)
    assert run.world.managed["vn1"].generation == 1
    run.world.apply(ch.NodeManaged(replace(run.world.managed["vn1"], phase=Phase.REMOVING, fail=True)))
    run.world.apply(ch.NodeManaged(replace(run.world.managed["vn1"], phase=Phase.FAILED)))
    run.world.apply(ch.InstanceGone(run.world.managed["vn1"].host, "vn1", run.now_s))
    silent = replace(run.world.nodes["vn1"], flags=frozenset({"DYNAMIC_NORM", "NOT_RESPONDING"}))
    run.world.apply(ch.NodeSeen(silent, run.now_s))
    for later_s in range(0, 140, 10):
        run.world.apply(ch.Tick(run.now_s + later_s))
        for source in ("slurm", "bm1", "bm2"):
            run.world.apply(ch.SourceSeen(source, run.now_s + later_s))
    assert [a.subject for a in plan(run.world, rules).actions if isinstance(a, DeleteNode)] == ["vn1"]


DEAD = Node("vn9", NodeBase.DOWN, frozenset({"DYNAMIC_NORM"}))


@pytest.mark.parametrize(
    ("node", "goes"),
    [
        (DEAD, True),
        (replace(DEAD, base=NodeBase.IDLE, flags=DEAD.flags | {"NOT_RESPONDING"}), True),
        (replace(DEAD, flags=frozenset()), False),
        (replace(DEAD, base=NodeBase.IDLE), False),
        (replace(DEAD, flags=DEAD.flags | {"COMPLETING"}), False),
        (replace(DEAD, name="other9"), False),
    ],
    ids=["down", "silent", "not dynamic", "answers", "completing", "a name of others"],
)
def test_only_what_is_dead_and_ours_leaves_slurm(node: Node, goes: bool) -> None:
    """Somebody else's node, or one on which something may be, stays for ever."""
    sim = cluster()
    run = play(sim, policies(limits=Limits(missing_s=120.0)))
    run.run(10.0)
    run.world.apply(ch.NodeSeen(node, run.now_s))
    for later_s in range(0, 140, 10):
        run.world.apply(ch.Tick(run.now_s + later_s))
        for source in ("slurm", "bm1", "bm2"):
            run.world.apply(ch.SourceSeen(source, run.now_s + later_s))
    deleted = [a.subject for a in plan(run.world, run.policies).actions if isinstance(a, DeleteNode)]
    assert deleted == ([node.name] if goes else [])


# As many as are within `limits.sure_after_s`.
@pytest.mark.parametrize(("times", "cut_s"), [(1, 0.0), (2, 0.0), (4, 0.0), (1, 30.0), (3, 30.0)])
def test_a_daemon_without_a_journal_fills_no_host_of_which_it_was_told_too_little(
    times: int, cut_s: float
) -> None:
    """The first readings, at once or after the host was out of reach, tell of no domain: it is full."""
    sim = cluster(cpus=2)
    rules = replace(policies(scale=Scale(idle_s=600)), hosts=("bm1",))
    run = play(sim, rules)
    lows = [sim.submit("htc", 300.0, requeue=False) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    more = sim.submit("htc", 20.0)
    run.kill()
    if cut_s:
        sim.cut_host("bm1")
        sim.at(sim.now_s + cut_s, lambda: sim.join_host("bm1"))
    sim.faults.misread(Odd.NO_INSTANCES, subject="bm1", times=times)
    anew = play(sim, rules)
    anew.until(lambda: ended(sim, *lows, more), 900)
    assert {sim.job(low).restarts for low in lows} == {0}
    assert {sim.job(low).state for low in lows} == {JobState.COMPLETED}
    assert sim.audit() == []
