"""A plan that looks only at what is marked is the plan from scratch, also where no reading helps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import HeldJob, JobPatience, ManagedNode, NodeProof, NodeStop, Phase
from backfill.core.model.plan import Plan, SetNode
from backfill.core.model.quantities import Resources
from backfill.core.placement import Rooms
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.workloads import Workload, Workloads
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from tests.conftest import compare
from tests.simulation.policy_cluster import policies

NOW_S = 1_700_000_000.0
PAUSED = NodeStop(NOW_S, kind=Rung.PAUSE)
DRAINED = frozenset({"DRAIN"})
OPEN, SHUT = Node("bm2", NodeBase.IDLE, cpus=4), Node("bm2", NodeBase.IDLE, DRAINED, "people", cpus=4)
MOVES = Ladder((RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.MIGRATE), RungRule(Rung.REQUEUE)))


def one_aside(shape: Flavour, patience: JobPatience | None = None, stop: NodeStop = PAUSED) -> World:
    """bm1 is taken by job 9 of ann's, vn1 is parked there with job 1; nothing may come to bm2."""
    world = World()
    node = ManagedNode(
        "vn1",
        "10.77.1.1/16",
        "bm1",
        1,
        Phase.PARKED,
        NOW_S,
        NOW_S,
        held=(HeldJob("1", 0, patience=patience),),
        stop=stop,
        proof=NodeProof(NOW_S),
        flavour=shape,
    )
    tag, takes = Tag("sim", "vn1", 1), Resources(shape.cpus, shape.memory_mb)
    changes: tuple[ch.Change, ...] = (
        ch.Tick(NOW_S),
        ch.NodeManaged(node),
        *(ch.HostSeen(Host(name, name, Resources(4, 4096)), NOW_S) for name in ("bm1", "bm2")),
        ch.InstanceSeen(Instance("vn1", "bm1", InstanceState.PAUSED, tag, takes), NOW_S),
        ch.NodeSeen(Node("bm1", NodeBase.ALLOCATED, cpus=4, cpus_allocated=4), NOW_S),
        ch.NodeSeen(SHUT, NOW_S),
        ch.NodeSeen(
            Node("vn1", NodeBase.ALLOCATED, DRAINED, "backfill: x", cpus=1, slurmd_start_s=NOW_S), NOW_S
        ),
        ch.JobSeen(Job("1", 1, "htc", JobState.SUSPENDED, name="pilot", nodes=("vn1",)), NOW_S),
        ch.JobSeen(taker(), NOW_S),
        *(ch.SourceSeen(source, NOW_S) for source in ("slurm", "bm1", "bm2")),
    )
    for change in changes:
        world.apply(change)
    return world


def taker() -> Job:
    running, limit_s = JobState.RUNNING, 3600.0
    return Job(
        "9", 9, "batch", running, user="ann", nodes=("bm1",), cpus=4, start_s=NOW_S, time_limit_s=limit_s
    )


def settled(world: World, rules: PolicySet) -> Plan:
    """Plan and carry out until nothing more is begun."""
    while (found := plan(world, rules)).actions:
        for action in found.actions:
            world.apply(action.effect(world.now_s))
    return found


def after(world: World, rules: PolicySet, changes: Iterable[ch.Change]) -> Plan:
    """The plan after these changes, which is the one from scratch."""
    for change in changes:
        world.apply(change)
    anew = plan(world, rules, from_scratch=True)
    found = plan(world, rules)
    compare(found, anew)
    return found


def test_news_of_rooms_that_somebody_else_came_across_is_told() -> None:
    """vn1 begins to look for another host as bm2 is opened, and finds none that is large enough.

    That look was the one that noticed bm2, for which a new instance waits: its turn comes later.
    """
    rules = policies(ladder=MOVES, comeback=Comeback(move_after_s=60.0), limits=Limits(max_instances=2))
    world = one_aside(Flavour(cpus=4, memory_mb=8192))
    world.apply(ch.JobSeen(Job("2", 2, "htc", JobState.PENDING, reason="Resources"), NOW_S))
    assert settled(world, rules).refusals
    found = after(world, rules, [ch.Tick(NOW_S + 60.0), ch.NodeSeen(OPEN, NOW_S + 60.0)])
    assert found.actions


def pass_until(world: World, at_s: float) -> None:
    """Nothing else is new."""
    world.apply(ch.Tick(at_s))
    for source in ("slurm", "bm1", "bm2"):
        world.apply(ch.SourceSeen(source, at_s))


def asked_of(world: World, rules: PolicySet, *asks: tuple[float, Resources]) -> Rooms:
    """What many have asked of bm1, of which it keeps the latest few."""
    rooms = Rooms(rules)
    for ask in asks:
        rooms.looks(world, ask)
    rooms.news(world)
    rooms.hosts.begin()
    return rooms


def test_news_for_those_whose_question_is_not_kept_is_told() -> None:
    """All questions that are kept are for more than the host can ever have: to them it looks the same."""
    world, small = World(), Resources(1, 256)
    world.apply(ch.Tick(NOW_S))
    host = Host("bm1", None, Resources(1, 256), sizes=(small,))
    world.apply(ch.HostSeen(host, NOW_S))
    world.apply(ch.SourceSeen("bm1", NOW_S))
    rooms = asked_of(world, policies(hosts=("bm1",)), *((0.0, Resources(cpus, 256)) for cpus in range(1, 20)))
    world.apply(ch.HostSeen(replace(host, capacity=Resources(2, 512)), NOW_S + 1.0))
    rooms.hosts.touch("bm1")
    assert rooms.news(world)
    rooms.hosts.touch("bm1")
    assert not rooms.news(world), "whoever waits has asked anew by now, or would be told once more"


def test_time_is_over_also_for_those_whose_question_is_not_kept() -> None:
    """The host is wanted at a certain time: for this one an instance pays until soon, for others for long."""
    world = one_aside(Flavour(cpus=1, memory_mb=256))
    world.apply(ch.NodeSeen(replace(OPEN, planned_s=NOW_S + 1000.0), NOW_S))
    asks = [(pays_s, Resources(1, 256)) for pays_s in (900.0, *(100.0 + i for i in range(20)))]
    rooms = asked_of(world, policies(hosts=("bm2",)), *asks)
    pass_until(world, NOW_S + 150.0)
    rooms.find_due(world.now_s)
    assert rooms.news(world)


def test_the_very_moment_at_which_a_host_still_pays_is_not_taken_for_the_end() -> None:
    """Until then an instance pays, that moment included."""
    world = one_aside(Flavour(cpus=1, memory_mb=256))
    world.apply(ch.NodeSeen(replace(OPEN, planned_s=NOW_S + 1000.0), NOW_S))
    rooms = asked_of(world, policies(hosts=("bm2",)), (900.0, Resources(1, 256)))
    told = []
    for moment_s in (100.0, 101.0):
        pass_until(world, NOW_S + moment_s)
        rooms.find_due(world.now_s)
        told.append(rooms.news(world))
    assert told == [False, True]


def pilots(ladder: Ladder) -> PolicySet:
    return policies(
        workloads=Workloads((Workload("p", job_name="pilot", stand_still_s=600.0, ladder=ladder.rungs),))
    )


def of_ann(share: float, first: int, count: int) -> Iterable[ch.Change]:
    """So many jobs of hers that used a share of an hour on bm2 have just ended."""
    for number in range(first, first + count):
        job = Job(
            str(number),
            number,
            "batch",
            JobState.RUNNING,
            user="ann",
            nodes=("bm2",),
            start_s=NOW_S - share * 3600.0,
            time_limit_s=3600.0,
        )
        yield ch.JobSeen(job, NOW_S)
        yield ch.JobSeen(replace(job, state=JobState.COMPLETED), NOW_S)


WAITS = Ladder((RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.REQUEUE)))


@pytest.mark.parametrize("ladder", [WAITS, MOVES])
def test_what_is_learnt_of_an_owner_reaches_those_who_wait_for_his_job(ladder: Ladder) -> None:
    """Her jobs were short, so that the pilot waits; now that they are long it would wait in vain."""
    rules = pilots(ladder)
    world = one_aside(
        Flavour(cpus=1, memory_mb=256), JobPatience(NOW_S, 600.0), replace(PAUSED, workload="p")
    )
    for change in of_ann(0.01, 100, 3):
        world.apply(change)
    settled(world, rules)
    assert world.managed["vn1"].stopping.kind is Rung.PAUSE
    assert after(world, rules, of_ann(1.0, 200, 16)).actions


def test_what_is_learnt_of_an_owner_saves_who_was_to_start_over() -> None:
    """The other way round: her jobs are short after all, and the pilot waits that was to be requeued.

    So far a limit has kept it from that.
    """
    rules = replace(pilots(WAITS), limits=Limits(destroys_per_min=0))
    stop = NodeStop(NOW_S, 1, Rung.REQUEUE, workload="p", first=1, foreseen=True)
    world = one_aside(Flavour(cpus=1, memory_mb=256), JobPatience(NOW_S, 600.0), stop)
    settled(world, rules)
    assert world.managed["vn1"].phase is Phase.PARKED
    (step,) = after(world, rules, of_ann(0.01, 100, 3)).actions
    assert isinstance(step, SetNode)
    assert step.node.stopping.kind is Rung.PAUSE
