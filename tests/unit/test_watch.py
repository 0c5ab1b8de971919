"""How eagerly Slurm is asked: at once after news, ever more seldom without, never in a circle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.engine.watch import Watch, crowd_of

NODES = frozenset({"vn1"})


def starting(name: str, host: str, job: str) -> ManagedNode:
    return ManagedNode(name, "10.77.1.1/16", host, 1, Phase.BOOTING, 1.0, 1.0, job=job)


def watch() -> Watch:
    made = Watch(0.03)
    made.want(NODES, 100.0)
    return made


def test_a_new_node_is_asked_about_at_once() -> None:
    """And nobody is asked about where nothing is awaited."""
    assert Watch(0.03).due(100.0) == ()
    assert watch().due(100.0) == ("vn1",)


def test_an_answer_on_its_way_is_waited_for() -> None:
    """Whatever happens meanwhile: there is nothing to do until it comes."""
    made = watch()
    made.asked(100.0)
    made.stir(100.01)
    assert made.due(100.02) == ()
    assert made.due_in_s(100.02) > 1.0


def test_a_host_is_left_by_one_job_at_a_time() -> None:
    """Only the job that has ended is waited for: others may stay beside it for hours."""
    world, made = World(), Watch(0.03)
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(4, 4000)), 1.0))
    for number in (7, 8):
        job = Job(str(number), number, "batch", JobState.RUNNING, nodes=("bm1",), cpus=2)
        world.apply(ch.JobSeen(job, 1.0))
    made.leaves("7", ("bm1", "other"), 1.0)
    assert made.leaving(world) == {"bm1"}
    world.apply(ch.JobGone("7", 2.0))
    assert made.leaving(world) == frozenset()
    made.leaves("8", ("bm1",), 2.0)
    made.comes(("bm1",))
    assert made.leaving(world) == frozenset()


def test_what_happened_meanwhile_is_looked_at_next() -> None:
    """The answer may be older than it: without waiting, but for the rest that asking costs."""
    made = watch()
    made.asked(100.0)
    made.stir(100.005)
    made.answered(100.01)
    assert made.due_in_s(100.01) == pytest.approx(0.02)
    assert made.due(100.031) == ("vn1",)


def test_without_news_it_becomes_seldom() -> None:
    """From the fastest to twice a second."""
    made, now_s, pauses = watch(), 100.0, []
    for _ in range(12):
        made.asked(now_s)
        made.answered(now_s)
        pauses.append(made.due_in_s(now_s))
        now_s += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.03)
    assert pauses[-1] == pytest.approx(0.5)


def test_nodes_that_only_start_are_asked_about_in_an_even_pace() -> None:
    """A further one brings no question of its own; one whose job waits makes it eager again."""
    made, now_s = Watch(0.03), 100.0
    made.want(NODES, now_s, crowd=1)
    for _ in range(12):
        assert made.due(now_s)
        made.asked(now_s)
        made.answered(now_s)
        assert made.due_in_s(now_s) == pytest.approx(0.1)
        made.want(NODES | {"vn2"}, now_s, crowd=1)
        assert made.due_in_s(now_s) == pytest.approx(0.1)
        made.want(NODES, now_s, crowd=1)
        now_s += 0.1
    made.want(NODES | {"bm1"}, now_s - 0.09)
    assert made.due(now_s - 0.09)


@pytest.mark.parametrize(("many", "pause_s"), [(1, 0.1), (3, 0.3), (5, 0.5), (100, 0.5)])
def test_the_more_start_the_less_often_they_are_asked_about(many: int, pause_s: float) -> None:
    """They need the CPUs; but never less than twice a second."""
    made = Watch(0.03)
    made.want(NODES, 100.0, crowd=many)
    made.asked(100.0)
    made.answered(100.0)
    assert made.due_in_s(100.0) == pytest.approx(pause_s)


def test_the_last_of_a_crowd_is_asked_about_as_one_alone() -> None:
    """Also by the question that waited for the crowd's pace; asking still costs its rest."""
    made = Watch(0.03)
    made.want(NODES, 100.0, crowd=5)
    made.asked(100.0)
    made.answered(100.0)
    made.want(NODES, 100.2, crowd=1)
    assert made.due_in_s(100.2) == pytest.approx(0.1)
    made.asked(100.3)
    made.answered(100.5)
    made.want(NODES, 100.5, crowd=1)
    assert made.due_in_s(100.5) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("nodes", "many"),
    [
        ([], 1),
        ([("bm1", "")], 1),
        ([("bm1", ""), ("bm1", ""), ("bm2", "")], 2),
        ([("bm1", ""), ("bm1", ""), ("bm1", "7")], 1),
    ],
)
def test_a_crowd_is_beside_each_other(nodes: list[tuple[str, str]], many: int) -> None:
    """On other hosts they take nothing from each other; and where a job waits, it is for one."""
    world = World()
    for number, (host, job) in enumerate(nodes):
        world.apply(ch.NodeManaged(starting(f"vn{number}", host, job)))
    names = frozenset(f"vn{number}" for number in range(len(nodes)))
    assert crowd_of(world, names) == many
    assert crowd_of(world, names | {"bm1"}) == 0
    paused = replace(starting("vn9", "bm1", ""), phase=Phase.PARKED)
    world.apply(ch.NodeManaged(paused))
    assert crowd_of(world, names | {"vn9"}) == 0


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.01, 0.03), (0.1, 0.2), (10.0, 0.5)])
def test_where_asking_takes_long_it_is_done_less_often(took_s: float, rest_s: float) -> None:
    """The CPUs are short there, and those who are awaited need them; never less than twice a
    second."""
    made = watch()
    made.asked(100.0)
    made.answered(100.0 + took_s)
    made.stir(100.0 + took_s)
    assert made.due_in_s(100.0 + took_s) == pytest.approx(rest_s if took_s > 0.01 else 0.02)
