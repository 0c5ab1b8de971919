"""Idle instances that make way for a job's own machines: at once, as few as will do, never in vain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.lifecycle import Phase
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, ended, phases, play, policies, running
from tests.simulation.test_numa import there, two_nodes

WORD = "backfill-vm"
LONG = Scale(idle_s=3600)


def rules(**given: object) -> PolicySet:
    return policies(**{"own_machines": OwnMachines(enabled=True), "scale": LONG, **given})


def submit(sim: SimulatedWorld, word: str, lasts_s: float = 10.0, **asked: int) -> str:
    """As with job_submit.lua: it is held as it is submitted, or an idle instance might take it."""
    said = f"{WORD}:{word},held=1"
    return sim.submit("htc", lasts_s, admin_comment=said, held=True, held_by_owner=True, **asked)


def idle(run: Rehearsal) -> set[str]:
    return set(run.world.ready.idle)


def hosts(run: Rehearsal, names: set[str]) -> list[str]:
    return sorted(run.world.managed[name].host for name in names)


def full_of_idle(given: PolicySet, work: int = 0) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Both hosts, of two CPUs each, are full of instances; `work` of them go on working, the others idle."""
    sim = cluster(2)
    run = play(sim, given)
    long = [sim.submit("htc", 600.0) for _ in range(work)]
    short = [sim.submit("htc", 30.0) for _ in range(4 - work)]
    run.until(lambda: running(sim, *long, *short), 60)
    run.until(lambda: ended(sim, *short), 60)
    run.run(5)
    assert len(idle(run)) == 4 - work
    return sim, run, long


@pytest.mark.parametrize("warm", [0, 4])
def test_those_of_one_host_go_at_once_and_the_others_stay(warm: int) -> None:
    """All would idle for an hour; the job needs two, both on one host, and begins within seconds."""
    sim, run, _ = full_of_idle(rules(scale=replace(LONG, warm=warm)))
    job = submit(sim, "cpus=2", cpus=2)
    began_s = sim.now_s
    run.until(lambda: running(sim, job), 100)
    assert sim.now_s < began_s + 20
    assert len(idle(run)) == 2
    assert len(set(hosts(run, idle(run)))) == 1
    run.until(lambda: ended(sim, job), 60)
    assert sim.audit() == []


def test_they_go_one_by_one_where_the_policy_says_so() -> None:
    """With limits.removals_at_once = 1 it takes longer, and no more of them go."""
    limits = Limits(boots_at_once=12, removals_at_once=1)
    sim, run, _ = full_of_idle(rules(limits=limits))
    job = submit(sim, "cpus=2", cpus=2)
    run.until(lambda: running(sim, job), 60)
    assert len(idle(run)) == 2
    assert sim.audit() == []


def test_none_goes_where_their_room_would_not_do() -> None:
    """The job needs both hosts, and one of them has work that goes on: nobody is let go in vain."""
    sim, run, (work, _) = full_of_idle(rules(), work=2)
    before = idle(run)
    job = submit(sim, "cpus=2", num_nodes=2, cpus=4)
    run.run(30)
    assert idle(run) == before
    run.until(lambda: ended(sim, work), 700)
    run.until(lambda: ended(sim, job), 60)
    assert sim.audit() == []


def test_a_later_order_that_they_help_has_their_room() -> None:
    """The first finds none with them either: it is passed over, for as long as it may be."""
    sim, run, _ = full_of_idle(rules(), work=2)
    large = submit(sim, "cpus=2", num_nodes=2, cpus=4)
    run.run(5)
    small = submit(sim, "cpus=1")
    began_s = sim.now_s
    run.until(lambda: running(sim, small), 60)
    assert sim.now_s < began_s + 20
    assert not running(sim, large)
    assert len(idle(run)) == 1
    assert sim.audit() == []


def test_several_jobs_have_their_turns_one_after_the_other() -> None:
    """Each of three takes the room of one idle instance; the fourth instance stays."""
    sim, run, _ = full_of_idle(rules())
    jobs = [submit(sim, "cpus=1", 120.0) for _ in range(3)]
    began_s = sim.now_s
    run.until(lambda: running(sim, *jobs), 100)
    assert sim.now_s < began_s + 45
    assert len(idle(run)) == 1
    assert sim.audit() == []


def test_machines_apart_take_one_of_each_host() -> None:
    """As the job asks for: one idle instance of either host goes."""
    sim, run, _ = full_of_idle(rules())
    job = submit(sim, "cpus=1,place=spread", num_nodes=2, cpus=2)
    run.until(lambda: running(sim, job), 60)
    assert hosts(run, idle(run)) == ["bm1", "bm2"]
    assert sim.audit() == []


@pytest.mark.parametrize("what", ["limit", "names"])
def test_they_make_way_where_not_room_but_their_number_is_in_the_way(what: str) -> None:
    """limits.max_instances, or all names that there are."""
    given = rules(limits=Limits(boots_at_once=12, removals_at_once=12, max_instances=4))
    if what == "names":
        few = replace(TWELVE, names=TWELVE.names[:4], addresses=TWELVE.addresses[:4])
        given = rules(instances=few)
    sim = cluster(8)
    run = play(sim, given)
    short = [sim.submit("htc", 30.0) for _ in range(4)]
    run.until(lambda: ended(sim, *short), 90)
    run.run(5)
    assert len(idle(run)) == 4
    job = submit(sim, "cpus=2", cpus=2)
    began_s = sim.now_s
    run.until(lambda: running(sim, job), 100)
    assert sim.now_s < began_s + 20
    assert len(idle(run)) == 3
    assert sim.audit() == []


def test_one_that_gets_a_job_just_then_keeps_it() -> None:
    """The job came before the drain: its room is not coming, and another idle instance makes way instead."""
    sim, run, _ = full_of_idle(rules())
    going = min(run.world.ready.idle, key=lambda name: (run.world.managed[name].idle_since_s or 0.0, name))
    lost = sim.faults.fail("drain", UnreachableError("slurm", "no answer"), subject=going, times=-1)
    own = submit(sim, "cpus=1", 60.0)
    run.until(lambda: phases(run, Phase.DRAINING) == {going}, 30)
    plain = sim.submit("htc", 300.0, required_nodes=(going,))
    run.until(lambda: running(sim, own, plain), 60)
    assert phases(run, Phase.DRAINING) == {going}
    assert len(idle(run)) == 2
    lost.end()
    run.until(lambda: ended(sim, own, plain), 400)
    assert sim.job(plain).restarts == 0
    assert sim.audit() == []


def test_jobs_that_would_take_them_keep_them() -> None:
    """A job waits that any instance serves: it has them first."""
    sim, run, _ = full_of_idle(rules())
    before = idle(run)
    plain = sim.submit("htc", 60.0, num_nodes=4, cpus=4)
    own = submit(sim, "cpus=2", cpus=2)
    run.until(lambda: running(sim, plain), 30)
    assert set(sim.job(plain).nodes) == before
    run.until(lambda: ended(sim, plain, own), 200)
    assert sim.audit() == []


def test_those_go_that_leave_room_on_one_numa_node() -> None:
    """Four idle instances of one CPU on each host, two on each NUMA node: a machine of two is never split."""
    sim = two_nodes(cpus=4)
    run = play(sim, rules())
    short = [sim.submit("htc", 30.0) for _ in range(8)]
    run.until(lambda: len(idle(run)) == 8, 120)
    run.until(lambda: ended(sim, *short), 60)
    own = submit(sim, "cpus=2,mem=512", 60.0, cpus=2)
    began_s = sim.now_s
    run.until(lambda: running(sim, own), 100)
    assert sim.now_s < began_s + 20
    assert len(idle(run)) == 6
    (mine,) = (m for m in run.world.managed.values() if m.job == own)
    left = there(sim, mine.host)
    assert sorted(left.values()) == [1, 2]
    assert sim.audit() == []
