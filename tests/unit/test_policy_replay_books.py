"""The books of a replay: where core seconds go, how evictions end, how policies fit a cluster."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Flavour, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeStop, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.sim.replay.fitting import MisfitError, everywhere, low_jobs, memory_for, node_names
from backfill.sim.replay.ledger import Ledger, Window
from backfill.sim.replay.policy_replay import collected_seldom, run
from backfill.sim.replay.trace_cluster import JobTale
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.trace import JobDetails, TraceBuilder
from tests.unit.harvest_inputs import policy, setting, trace_of


def ledger(end_s: float = 1000.0) -> Ledger:
    return Ledger(Window(0.0, end_s), host_cpus=2, instance_cpus=1)


def segment(start_s: float, end_s: float) -> Segment:
    return Segment("1", 0, "vn1", "n1", 0.0, start_s, end_s)


def low(cpus: int = 1) -> JobTale:
    return JobTale(0, False, cpus, 0.0)


def test_kept_and_lost_work() -> None:
    """Of an attempt the first seconds are kept, the later ones lost; outside nothing counts."""
    books = ledger()
    books.attempt(low(2), [segment(100, 150), segment(200, 300)], kept_s=70)
    assert (books.kept_core_s, books.lost_core_s) == (140, 160)
    books.attempt(low(), [segment(900, 1100)], kept_s=200)
    assert (books.kept_core_s, books.lost_core_s) == (240, 160)


def test_saving_is_no_goodput() -> None:
    """The share of time that a job spends on saving itself is counted apart."""
    books = ledger()
    books.attempt(low(), [segment(0, 100)], kept_s=100, saving=0.1)
    assert (books.kept_core_s, books.saving_core_s) == (90, 10)


def seen(world: World, books: Ledger, host: str, state: InstanceState, at_s: float) -> None:
    tag, size = Tag("c", "vn1", 1), Resources(1, 100)
    change = ch.InstanceSeen(Instance("vn1", host, state, tag, size), at_s)
    world.apply(change)
    books.change(world, change)


def evicting(host: str, phase: Phase = Phase.EVICTING) -> SetNode:
    return SetNode(ManagedNode("vn1", "10.0.0.1/8", host, 1, phase, 0.0, 0.0), "")


@pytest.mark.parametrize(
    ("state", "rung"), [(InstanceState.PAUSED, "pause"), (InstanceState.SUSPENDED, "suspend")]
)
def test_an_eviction_ends_when_the_instance_stands_still(state: InstanceState, rung: str) -> None:
    """Counted once, from the decision on, by the state in which it left the CPUs."""
    world, books = World(), ledger()
    seen(world, books, "n1", InstanceState.RUNNING, 10.0)
    books.step(20.0, evicting("n1"))
    seen(world, books, "n1", state, 20.5)
    books.step(20.6, evicting("n1"))
    seen(world, books, "n1", InstanceState.SUSPENDED, 80.0)
    assert [(e.rung, e.asked_s, e.vacated_s) for e in books.evictions] == [(rung, 20.0, 20.5)]
    assert books.on_cpu_s == 10.5


def test_a_stop_on_the_way_to_the_queue_is_no_pause() -> None:
    """A ladder that only requeues stops an instance first, and then throws its work away."""
    world, books = World(), ledger()
    seen(world, books, "n1", InstanceState.RUNNING, 10.0)
    step = evicting("n1")
    books.step(20.0, replace(step, node=replace(step.node, stop=NodeStop(20.0, kind=Rung.REQUEUE))))
    seen(world, books, "n1", InstanceState.PAUSED, 20.5)
    assert [(e.rung, e.vacated_s) for e in books.evictions] == [("requeue", 20.5)]


def test_an_instance_that_is_asked_for_while_it_is_made() -> None:
    """Until it has come and stopped there is no room: that is its time, and it is an eviction."""
    world, books = World(), ledger()
    books.step(20.0, evicting("n1"))
    seen(world, books, "n1", InstanceState.RUNNING, 20.3)
    seen(world, books, "n1", InstanceState.PAUSED, 20.4)
    assert [(e.rung, e.asked_s, e.vacated_s) for e in books.evictions] == [("pause", 20.0, 20.4)]
    books.step(30.0, evicting("n1"))  # stopped as it is, it is nobody's victim
    gone = ch.InstanceGone("n1", "vn1", 31.0)
    world.apply(gone)
    books.change(world, gone)
    assert len(books.evictions) == 1


def test_an_instance_that_moved_or_was_destroyed() -> None:
    """Gone from its host: a migration when it runs elsewhere, a requeue otherwise."""
    for elsewhere, rung in ((True, "migrate"), (False, "requeue")):
        world, books = World(), ledger()
        seen(world, books, "n1", InstanceState.RUNNING, 10.0)
        books.step(20.0, evicting("n1"))
        if elsewhere:
            seen(world, books, "n2", InstanceState.RUNNING, 24.0)
        gone = ch.InstanceGone("n1", "vn1", 25.0)
        world.apply(gone)
        books.change(world, gone)
        assert [e.rung for e in books.evictions] == [rung]


def test_an_eviction_that_was_called_off_does_not_count() -> None:
    """The host was given back before the stop."""
    world, books = World(), ledger()
    seen(world, books, "n1", InstanceState.RUNNING, 10.0)
    books.step(20.0, evicting("n1"))
    books.step(20.1, evicting("n1", Phase.RETURNING))
    gone = ch.InstanceGone("n1", "vn1", 500.0)
    world.apply(gone)
    books.change(world, gone)
    assert books.evictions == []


def test_more_instances_than_a_host_has_cpus_are_noticed() -> None:
    """What would count twice is a complaint."""
    world, books = World(), replace(ledger(), host_cpus=1)
    tag, size = Tag("c", "vn1", 1), Resources(1, 100)
    for name in ("vn1", "vn2"):
        change = ch.InstanceSeen(Instance(name, "n1", InstanceState.RUNNING, tag, size), 5.0)
        world.apply(change)
        books.change(world, change)
    (complaint,) = books.overbooked
    assert str(complaint) == ("instances vn1, vn2 of 1 CPUs run on n1, which has 1 (at 5.000)")


# --- fitting -------------------------------------------------------------------------------------


def test_the_hosts_of_the_policy_come_first() -> None:
    """Other nodes get names that nobody has."""
    policies = replace(policy(), hosts=("bm1", "node1"))
    assert node_names(policies, Cluster(4, 1)) == ("bm1", "node1", "node2", "node3")
    with pytest.raises(MisfitError, match="2 hosts and the cluster 1 nodes"):
        node_names(policies, Cluster(1, 1))


def test_a_policy_for_all_nodes_has_names_enough() -> None:
    """Every node is a host, names and addresses are unique and begin as in the file."""
    fitted = everywhere(policy(per_host=4), Cluster(20, 2))
    assert len(fitted.hosts) == 20
    assert len(fitted.instances.names) == len(set(fitted.instances.addresses)) == 80
    assert fitted.instances.names[:2] == ("vn1", "vn2")
    assert set(fitted.hosts).isdisjoint(fitted.instances.names)
    assert fitted.limits == policy(per_host=4).limits


def test_work_that_no_instance_can_carry_is_left_out() -> None:
    """The backlog keeps what fits the flavour and counts the rest."""
    jobs = trace_of([ModelJob(0, 5, 1), ModelJob(0, 5, 2), ModelJob(0, 5, 1)])
    kept = low_jobs(jobs, [policy()])
    assert list(kept.processors) == [1, 1]
    assert kept.left_out == {"more processors than an instance has": 1}
    assert low_jobs(kept, [policy()]) is kept


def test_jobs_run_beside_one_another_only_if_their_memory_fits() -> None:
    """Each has an instance to itself although two have CPUs for them all; with one instance they queue up."""
    builder = TraceBuilder()
    for number in range(1, 5):
        builder.add(number, 0, 600, 1, 600)
        builder.details.append(JobDetails("htc", memory_mb=150))
    low = builder.build()
    for most, at_once in ((9, 4), (1, 1)):
        rules = policy(most=most, per_host=4)
        four = Flavour(cpus=4, memory_mb=256)
        made, rules = setting([ModelJob(0, 10, 16)], Cluster(1, 16), rules)
        rules = replace(rules, instances=replace(rules.instances, flavour=four))
        found = run(replace(made, low=low, memory_mb=4096, depth=9), rules, made.start_s + 4000.0)
        times = [(tale.start_s, tale.end_s) for tale in found.tales if not tale.high]
        together = max(sum(start_s <= at_s < end_s for start_s, end_s in times) for at_s, _ in times)
        assert together == at_once


def test_nodes_have_memory_for_the_stopped_and_the_running() -> None:
    """Twice a full set of instances, and what the limits keep back."""
    policies = policy()
    flavour = Flavour(cpus=4, memory_mb=1000)
    policies = replace(
        policies,
        instances=replace(policies.instances, flavour=flavour),
        limits=replace(policies.limits, keep_memory_mb=7),
    )
    assert memory_for(policies, Cluster(1, 9)) == 4007


@pytest.mark.parametrize("is_frozen", [True, False])
def test_the_collector_is_as_before_when_a_replay_has_ended(is_frozen: bool) -> None:
    """What somebody else has frozen is not looked through again because of it."""
    before = gc.get_threshold()
    try:
        gc.freeze() if is_frozen else gc.unfreeze()
        with collected_seldom():
            assert gc.get_freeze_count() > 0
            assert gc.get_threshold()[0] > before[0]
        assert (gc.get_freeze_count() > 0) is is_frozen
        assert gc.get_threshold() == before
    finally:
        gc.freeze()
