"""The journal tells that by which something is decided or learnt, and no more."""

from __future__ import annotations

import random
from dataclasses import replace

from backfill.core.heeding import Heed, Readings
from backfill.core.model.changes import Change, HostSeen, JobSeen, NodeManaged, SourceSeen, Tick
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from tests.simulation.policy_cluster import policies


def test_a_host_is_told_once_in_a_while() -> None:
    readings = Readings()
    readings.put(SourceSeen("n1", 100.0))
    assert [r.seen_s for r in readings.due(95.0, ())] == [100.0]
    readings.told(["n1"], 100.0)
    readings.put(SourceSeen("n1", 110.0))
    assert readings.due(100.0, ()) == []
    assert [r.seen_s for r in readings.due(105.0, ())] == [110.0]


def test_in_doubt_each_reading_is_told() -> None:
    readings = Readings()
    for seen_s in (100.0, 102.0):
        readings.put(SourceSeen("n1", seen_s))
        assert [r.seen_s for r in readings.due(50.0, {"n1"})] == [seen_s]
        readings.told(["n1"], seen_s)
        assert readings.due(50.0, {"n1"}) == []


def test_those_found_are_those_that_a_look_at_all_would_find() -> None:
    chance = random.Random(17)
    readings, latest, told = Readings(), dict[str, SourceSeen](), dict[str, float]()
    for now in range(1, 2000):
        for host in chance.sample([f"n{i}" for i in range(9)], chance.randrange(4)):
            latest[host] = SourceSeen(host, now - chance.random())
            readings.put(latest[host])
        each = {host for host in latest if chance.random() < 0.1}
        half_s = now - 10.0
        newer = {host: r for host, r in latest.items() if told.get(host, 0.0) < r.seen_s}
        expected = [h for h in sorted(newer) if h in each or told.get(h, 0.0) < half_s]
        assert [reading.source for reading in readings.due(half_s, each)] == expected
        oldest_s = min((newer[host].seen_s for host in expected), default=0.0)
        alone = chance.random() < 0.5
        for host in expected:
            told[host] = newer[host].seen_s if alone else oldest_s
            readings.told([host], told[host])


def test_a_replay_learns_the_same_habits() -> None:
    """Of jobs that were on no host of ours the journal tells nothing: nobody learns anything from them."""
    live, replayed, rules = World(), World(), policies()
    heed = Heed(live)
    taken: list[Change] = [HostSeen(Host("bm1", "bm1", Resources(4, 4096)), 1.0)]
    for number, (node, ran_s) in enumerate([("bm1", 400.0), ("else", 10.0)] * 4, 1):
        began = Job(
            str(number),
            number,
            "batch",
            JobState.RUNNING,
            user="ann",
            nodes=(node,),
            start_s=100.0,
            time_limit_s=1000.0,
        )
        taken += [JobSeen(began, 101.0), JobSeen(replace(began, state=JobState.COMPLETED), 100.0 + ran_s)]
    for change in taken:
        live.apply(change)
        for told in heed.news(change, rules):
            replayed.apply(told)
    assert live.owners.habits.shares("ann") == replayed.owners.habits.shares("ann") == (0.4, 0.4)


def test_the_readings_of_a_plan_are_those_that_it_was_made_by() -> None:
    """A node that it dropped was in doubt until then; one whose removal it begins was not yet."""
    world, rules = World(), policies()
    heed = Heed(world)
    world.apply(Tick(1000.0))
    going = ManagedNode("vn1", "10.0.0.1/8", "bm1", 1, Phase.REMOVING, 900.0, 900.0)
    staying = ManagedNode("vn2", "10.0.0.2/8", "bm2", 2, Phase.READY, 900.0, 900.0)
    world.apply(NodeManaged(replace(staying, phase=Phase.REMOVING)))  # vn1 is dropped
    for host in ("bm1", "bm2"):
        for seen_s in (999.0, 1000.0):
            heed.read(SourceSeen(host, seen_s))
            if seen_s == 999.0:
                heed.readings(rules, {})  # told a moment ago: it is not due for its age
    assert heed.readings(rules, {"vn1": going, "vn2": staying}) == [SourceSeen("bm1", 1000.0)]
