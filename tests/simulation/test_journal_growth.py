"""The journal tells what decisions rest on, however large the site is, and replays from that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core.model.changes import Claimed
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policy import PolicySet
from backfill.drivers.store.codec import packed
from backfill.engine.observe import cluster_changes
from backfill.ports.storage import Record
from backfill.ports.workload import ClusterObservation
from backfill.sim.replay.journal import replay_journal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.property.days import Day, policies
from tests.property.test_queue import LADDERS

See = Callable[[ClusterObservation], ClusterObservation]
_ROW = 35  # bytes of a row and its place in the index, beside its texts


def _day(rules: PolicySet | None = None) -> Day:
    return Day(rules if rules is not None else policies(LADDERS[0]))


def _stored(records: list[Record]) -> int:
    return sum(len(k) + 2 * len(s) + len(p) + _ROW for _, k, s, _, _, p in packed(records))


def _told(run: Rehearsal, after: int = 0) -> list[Record]:
    return list(run.journal.read(after_id=after))


def _show(run: Rehearsal, change: See) -> list[Record]:
    """One more picture of Slurm, made different; returns what was told because of it."""
    last = len(_told(run))
    seen = change(run.sim.slurm.observe())
    run.cycle.tick(run.sim.now_s)
    run.cycle.take(cluster_changes(run.world, seen))
    run.cycle.decide()
    return _told(run, last)


def _of(told: list[Record], subject: str) -> list[object]:
    return [r.body["t"] for r in told if r.subject == subject and r.kind == "change"]


def _others(number: int, **fields: object) -> dict[str, Job]:
    job = Job("0", 0, "other", JobState.PENDING, user="alice", account="physics", reason="Priority")
    job = replace(job, **fields)  # type: ignore[arg-type]  # its own fields
    return {str(n): replace(job, id=str(n), raw_id=n) for n in range(7000, 7000 + number)}


def _with(jobs: dict[str, Job]) -> See:
    return lambda seen: replace(seen, jobs={**seen.jobs, **jobs})


def test_the_queue_of_others_is_not_told() -> None:
    """Ten thousand of them come, get other priorities and go: not one byte."""
    run = _day().run
    run.run(10)
    for priority in (1, 2, 3):
        assert _show(run, _with(_others(10_000, priority=priority))) == []
    assert len(run.world.jobs) == 10_000  # the world has them: people may ask
    left = 10_000
    while left:
        left -= max(1, left // 2)  # were most gone at once, the reading would be odd
        assert _show(run, _with(_others(left, priority=3))) == []
    assert run.world.jobs == {}


def test_nodes_of_others_are_told_where_they_fall_silent() -> None:
    """Silence is ours to judge; what else they do all day is not."""
    run = _day().run
    run.run(10)
    other = Node("far1", NodeBase.IDLE)

    def turned(node: Node) -> list[object]:
        told = _show(run, lambda seen: replace(seen, nodes={**seen.nodes, "far1": node}))
        return _of(told, "far1")

    assert turned(other) == ["NodeSeen"]
    assert turned(replace(other, base=NodeBase.ALLOCATED, cpus_allocated=4)) == []
    assert turned(replace(other, flags=frozenset({"NOT_RESPONDING"}))) == ["NodeSeen"]
    assert turned(other) == ["NodeSeen"]


def test_a_job_of_others_is_told_from_the_moment_it_has_a_host() -> None:
    """Then all that happens to it is, to its end."""
    run = _day().run
    run.run(10)
    assert _show(run, _with(_others(1))) == []
    going = _others(1, state=JobState.RUNNING, nodes=("bm1", "far1"))
    assert _of(_show(run, _with(going)), "7000") == ["JobSeen"]
    assert _of(_show(run, _with(_others(1, restarts=1))), "7000") == ["JobSeen"]
    assert _of(_show(run, lambda seen: seen), "7000") == ["JobGone"]
    assert replay_journal(run.journal.read(), run.policies).differences == []


def test_a_job_that_claims_a_host_is_told() -> None:
    """A hook speaks before Slurm shows the job on the host."""
    run = _day().run
    run.run(10)
    _show(run, _with(_others(1)))
    last = len(_told(run))
    run.cycle.take([Claimed("7000", ("bm1",), run.sim.now_s, waiting=False)])
    run.cycle.decide()
    assert _of(_told(run, last), "7000")[:2] == ["Claimed", "JobSeen"]


def test_priorities_are_told_in_one_record_where_quotas_ask_for_them() -> None:
    """Who comes first under a ceiling is decided by them; elsewhere they are no news at all."""
    run = _day().run
    run.run(10)

    def ranked(priority: int) -> list[Record]:
        return _show(run, _with(_others(500, partition="htc", reason="Dependency", priority=priority)))

    assert Counter(r.body.get("t") for r in ranked(1))["JobSeen"] == 500
    assert ranked(9) == []
    run.cycle.policies = replace(run.policies, quotas=Quotas((Quota(4, user="alice"),)))
    ranked(9)
    told = ranked(5)
    kinds = Counter(r.body["t"] for r in told if r.kind == "change")
    assert (kinds["PrioritiesSeen"], kinds["JobSeen"]) == (1, 0)
    assert _stored([r for r in told if r.body.get("t") == "PrioritiesSeen"]) < 500 * 6


def test_new_policies_ask_for_more() -> None:
    """A partition that counts from now on: its jobs are told as they are by then."""
    run = _day().run
    run.run(10)
    _show(run, _with(_others(3)))
    last = len(_told(run))
    low = replace(run.policies.priorities, low=("htc", "other"))
    run.cycle.policies = replace(run.policies, priorities=low)
    run.cycle.decide()
    told = [r.subject for r in _told(run, last) if r.body.get("t") == "JobSeen"]
    assert told == ["7000", "7001", "7002"]


def test_hosts_that_are_read_again_and_again_cost_nothing() -> None:
    """Nothing happens for an hour, but that Slurm and three hosts are read every two seconds."""
    run = _day().run
    run.run(60)
    last = len(_told(run))
    run.run(3600)
    assert {r.kind for r in _told(run, last)} == {"clock"}  # every five minutes


@pytest.mark.parametrize(("pushed", "most"), [(False, 2500), (True, 24_000)])
def test_what_a_job_costs(pushed: bool, most: int) -> None:
    """Bytes in the file from a submission to the end, without and with an eviction and a return.

    20,000 jobs a day have to fit into 50 MB.
    """
    rules = policies(LADDERS[0])
    day = _day(replace(rules, scale=replace(rules.scale, idle_s=3600.0)))
    day.sim.submit("htc", 5.0)
    day.run.run(400)
    last = len(_told(day.run))
    job = day.sim.submit("htc", 60.0)
    day.run.run(20)
    if pushed:
        (node,) = day.sim.job(job).nodes
        day.sim.submit("batch", 20.0, required_nodes=(day.run.world.managed[node].host,))
    day.run.run(440)
    told = _told(day.run, last)
    assert day.sim.job(job).state is JobState.COMPLETED
    spent = Counter[str]()
    for r in told:
        spent[str(r.body.get("t", r.kind))] += _stored([r])
    assert sum(spent.values()) < most, spent.most_common(9)
    assert replay_journal(day.run.journal.read(), day.run.policies).differences == []
