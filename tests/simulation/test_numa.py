"""Instances on hosts of two NUMA nodes, in simulated time: none is split, and none is lost for it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from backfill.core.model.fleet import Flavour, InstanceState, NumaNode, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.spread import Larger, Order, Spread
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, ended, phases, play, policies, ready, running

_TWO_CPUS = {"instances": replace(TWELVE, flavour=Flavour(cpus=2, memory_mb=600))}


def two_nodes(cpus: int = 6) -> SimulatedWorld:
    """Two hosts with two NUMA nodes each, of half the CPUs and 2 GB; the numbers are all different."""
    sim = cluster(cpus)
    for number, host in enumerate(sim.hosts.values()):
        host.numa = tuple(NumaNode(2 * number + n, cpus // 2, 2048) for n in (0, 1))
    return sim


def there(sim: SimulatedWorld, host: str) -> Counter[int | None]:
    """How many instances are bound to each NUMA node of a host."""
    return Counter(one.view().numa for one in sim.hosts[host].instances.values())


def refused(run: Rehearsal) -> list[str]:
    return [why(refusal) for refusal in run.cycle.last.refusals]


def test_a_host_carries_what_its_numa_nodes_carry() -> None:
    """Three CPUs each for instances of two: one on each, and the two CPUs left over are nobody's."""
    sim = two_nodes()
    run = play(sim, policies(**_TWO_CPUS))
    jobs = [sim.submit("htc", 200.0, cpus=2) for _ in range(6)]
    run.until(lambda: ready(run) == 4, 100)
    run.run(30)
    assert ready(run) == 4
    assert there(sim, "bm1") == {0: 1, 1: 1}
    assert there(sim, "bm2") == {2: 1, 3: 1}
    assert any("no NUMA node of bm1 has 2 CPUs and 600 MB left" in said for said in refused(run))
    run.until(lambda: ended(sim, *jobs), 2000)
    assert sim.audit() == []


@pytest.mark.parametrize("larger", Larger)
def test_what_no_numa_node_can_carry_is_told_or_spans(larger: Larger) -> None:
    """A job's own machine of four CPUs where NUMA nodes have three."""
    sim = two_nodes()
    rules = policies(own_machines=OwnMachines(enabled=True), placement=Spread(larger_than_numa=larger))
    run = play(sim, rules)
    job = sim.submit("htc", 20.0, cpus=4, comment="backfill-vm:cpus=4,mem=512")
    if larger is Larger.SPAN:
        run.until(lambda: ended(sim, job), 200)
        assert sim.audit() == []
        return
    run.run(60)
    assert not run.world.managed
    said = " ".join([*refused(run), sim.slurm.admin_comment(job)])
    assert "no NUMA node of bm1 can have 4 CPUs" in said
    assert "placement.larger_than_numa" in said


@pytest.mark.parametrize("rung", [Rung.PAUSE, Rung.SUSPEND, Rung.MIGRATE])
def test_stopped_work_comes_back_to_a_numa_node_with_room(rung: Rung) -> None:
    """Its host is taken and given back; a new daemon reckons by what it finds, whatever it knew."""
    sim = two_nodes()
    rungs = [RungRule(rung, within_s=60.0), RungRule(Rung.REQUEUE)]
    if rung is Rung.MIGRATE:
        rungs.insert(0, RungRule(Rung.PAUSE, within_s=1.0, for_s=5.0))
    run = play(sim, policies(ladder=Ladder(tuple(rungs)), placement=Spread(Order.FIRST_FIT), **_TWO_CPUS))
    jobs = [sim.submit("htc", 300.0, cpus=2) for _ in range(2)]
    run.until(lambda: running(sim, *jobs), 60)
    assert there(sim, "bm1") == {0: 1, 1: 1}
    high = sim.submit("batch", 40.0, required_nodes=("bm1",), cpus=6)
    run.until(lambda: running(sim, high), 100)
    run.kill()
    run.start()
    run.run(20)
    if rung is Rung.MIGRATE:
        assert there(sim, "bm2") == {2: 1, 3: 1}
    elif rung is Rung.SUSPEND:
        assert there(sim, "bm1") == {None: 2}
    else:
        assert there(sim, "bm1") == {0: 1, 1: 1}
        assert len(phases(run, Phase.PARKED)) == 2
    run.until(lambda: ended(sim, *jobs, high), 2000)
    assert sim.audit() == []


def test_the_cpus_of_one_that_stands_still_are_its_own_until_it_is_back() -> None:
    """Nobody new gets its NUMA node meanwhile, though nothing runs there."""
    sim = two_nodes(4)
    sim.checks.shared = True
    run = play(sim, policies(hosts=("bm1",), **_TWO_CPUS))
    low = [sim.submit("htc", 120.0, cpus=2) for _ in range(2)]
    run.until(lambda: running(sim, *low), 60)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",), cpus=4)
    run.until(lambda: running(sim, high), 60)
    new = sim.submit("htc", 20.0, cpus=2)
    run.until(lambda: ended(sim, high), 60)
    run.until(lambda: running(sim, *low), 200)
    states = {one.state for one in sim.hosts["bm1"].instances.values()}
    assert states == {InstanceState.RUNNING}
    assert there(sim, "bm1") == {0: 1, 1: 1}
    run.until(lambda: ended(sim, *low, new), 1000)
    assert sim.audit() == []
