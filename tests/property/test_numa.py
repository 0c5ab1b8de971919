"""Hosts of NUMA nodes under random work: memory is given once, and nothing is lost for it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.model.fleet import Flavour, NumaNode, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.spread import Larger, Order, Spread
from tests.simulation.policy_cluster import TWELVE, cluster, ended, play, policies

_LADDER = Ladder(
    (
        RungRule(Rung.PAUSE, within_s=1.0, for_s=20.0),
        RungRule(Rung.SUSPEND, within_s=60.0, for_s=60.0),
        RungRule(Rung.MIGRATE),
    )
)
# What comes next: a job of so many CPUs and so much memory with a machine of its own; a plain job; a job
# that takes a host; a new daemon.
_DEEDS = st.lists(
    st.one_of(
        st.tuples(st.just("own"), st.integers(1, 4), st.integers(1, 8)),
        st.tuples(st.just("plain"), st.just(1), st.just(1)),
        st.tuples(st.just("metal"), st.integers(1, 2), st.just(1)),
        st.tuples(st.just("kill"), st.just(1), st.just(1)),
    ),
    min_size=3,
    max_size=10,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    deeds=_DEEDS,
    cells=st.lists(st.tuples(st.integers(1, 4), st.integers(4, 9)), min_size=1, max_size=3),
    larger=st.sampled_from(Larger),
    order=st.sampled_from(Order),
)
def test_no_numa_node_gives_its_memory_twice(
    deeds: list[tuple[str, int, int]], cells: list[tuple[int, int]], larger: Larger, order: Order
) -> None:
    """Made, paused, written to disk, moved and brought back, across new daemons."""
    sim = cluster(sum(cpus for cpus, _ in cells))
    for host in sim.hosts.values():
        host.numa = tuple(NumaNode(n, cpus, 256 * size) for n, (cpus, size) in enumerate(cells))
        host.capacity = replace(host.capacity, memory_mb=sum(node.memory_mb for node in host.numa))
    rules = policies(
        ladder=_LADDER,
        own_machines=OwnMachines(enabled=True),
        placement=Spread(order, larger_than_numa=larger),
        instances=replace(TWELVE, flavour=Flavour(cpus=1, memory_mb=512)),
    )
    run = play(sim, rules)
    plain, metal = [], []
    for what, one, other in deeds:
        if what == "own":
            sim.submit("htc", 40.0, cpus=one, comment=f"backfill-vm:cpus={one},mem={256 * other}")
        elif what == "plain":
            plain.append(sim.submit("htc", 60.0))
        elif what == "metal":
            metal.append(sim.submit("batch", 30.0, required_nodes=(f"bm{one}",), cpus=1))
        else:
            run.kill()
            run.start()
        run.run(7.0 * one)
    run.until(lambda: ended(sim, *plain, *metal), 5000)
    run.run(300)
    assert sim.audit() == []
