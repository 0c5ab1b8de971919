"""Free CPUs that no waiting job can use are no supply: they lie on several instances, or without memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import line
from backfill.core.policies.demand import Demand
from backfill.core.policies.environments import Environment, Environments
from backfill.core.policies.limits import Limits
from backfill.core.policies.quotas import Quota, Quotas
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, ended, phases, play, policies, running

LONG_S = 20_000.0
FOUR = replace(TWELVE, flavour=Flavour(cpus=4, memory_mb=8192))


def begin(**rules: object) -> tuple[SimulatedWorld, Rehearsal]:
    """Instances of 4 CPUs and 8 GB, of which two hosts carry eight."""
    sim = site(Manners())
    return sim, play(sim, policies(**{"instances": FOUR, **rules}))


def site(manners: Manners) -> SimulatedWorld:
    sim = SimulatedWorld(start_s=1_700_000_000.0, manners=manners)
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("metal", tier=1, feature="metal")
    for host in ("bm1", "bm2"):
        sim.add_host(host, cpus=16, memory_mb=65536, features=("metal",))
    return sim


def few(most: int) -> Limits:
    return Limits(boots_at_once=12, removals_at_once=12, max_instances=most)


def told(run: Rehearsal) -> list[str]:
    """What is said of single jobs."""
    return [line(one) for one in run.cycle.last.refusals if one.wanted is Goal.INSTANCE]


@pytest.mark.parametrize(
    ("those", "other"),
    [
        ({"cpus": 1, "memory_mb": 8000}, {"cpus": 1, "memory_mb": 8000}),
        ({"cpus": 1, "memory_mb": 5000}, {"cpus": 1, "memory_mb": 0}),
        ({"cpus": 3}, {"cpus": 4}),
        ({"cpus": 3}, {"cpus": 2}),
    ],
)
def test_a_job_that_fits_beside_nobody_gets_an_instance(those: dict[str, int], other: dict[str, int]) -> None:
    """However many CPUs are free in all. One that asks for no memory has all of an instance's."""
    sim, run = begin()
    lows = [sim.submit("htc", LONG_S, **those) for _ in range(4)]
    run.until(lambda: running(sim, *lows), 120)
    assert len(run.world.managed) == 4
    last = sim.submit("htc", 10.0, **other)
    run.until(lambda: ended(sim, last), 60)
    assert len(run.world.managed) == 5


@pytest.mark.parametrize("counts_memory", [False, True])
def test_an_exclusive_job_gets_an_instance_of_its_own(counts_memory: bool) -> None:
    """However much is free beside others, and however little it asks for."""
    sim = site(Manners(counts_memory=counts_memory))
    run = play(sim, policies(instances=FOUR))
    low = sim.submit("htc", LONG_S, cpus=1, memory_mb=100)
    run.until(lambda: running(sim, low), 120)
    last = [sim.submit("htc", 30.0, cpus=1, memory_mb=100, exclusive=True) for _ in range(2)]
    run.until(lambda: running(sim, *last), 120)
    assert len(run.world.managed) == 3
    assert told(run) == []
    run.until(lambda: ended(sim, *last), 60)
    again = sim.submit("htc", 10.0, cpus=1, memory_mb=100, exclusive=True)
    run.until(lambda: ended(sim, again), 25)  # one of these is still there
    assert len(run.world.managed) <= 3
    assert sim.audit() == []


def test_none_is_made_for_jobs_that_fit_beside_others() -> None:
    """Large ones first, and small ones into what these leave."""
    sim, run = begin()
    lows = [sim.submit("htc", LONG_S, cpus=3, memory_mb=6000) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 120)
    more = [sim.submit("htc", LONG_S, cpus=1, memory_mb=2000) for _ in range(2)]
    run.until(lambda: running(sim, *more), 60)
    assert len(run.world.managed) == 2


def test_jobs_that_need_an_instance_each_get_them_at_once() -> None:
    """Their CPUs together would fit into one, and their memory does not: no boot waits for another."""
    sim, run = begin()
    lows = [sim.submit("htc", LONG_S, cpus=1, memory_mb=4500 + number) for number in range(6)]
    run.run(4.0)
    assert len(phases(run, Phase.BOOTING)) == 6
    run.until(lambda: running(sim, *lows), 120)
    assert len(run.world.managed) == 6


@pytest.mark.parametrize(
    ("rules", "wishes", "words"),
    [
        ({}, {"cpus": 2}, "no instance has 2 CPUs and all of the memory left in one piece"),
        ({}, {"cpus": 1, "memory_mb": 4000}, "no instance has 1 CPU and 4000 MB left in one piece"),
        ({}, {"cpus": 1, "memory_mb": 0}, "no instance has 1 CPU and all of the memory left in one piece"),
        (
            {"demand": Demand(max_nodes=2)},
            {"cpus": 2, "num_nodes": 2, "memory_mb": 4000},
            "fewer than 2 instances have 1 CPU and 4000 MB left in one piece",
        ),
        ({}, {"cpus": 1, "memory_mb": 9, "exclusive": True}, "no instance is free of other jobs"),
        (
            {"demand": Demand(max_nodes=2)},
            {"cpus": 2, "num_nodes": 2, "memory_mb": 9, "exclusive": True},
            "fewer than 2 instances are free of other jobs",
        ),
        (
            {"quotas": Quotas((Quota(99),))},
            {"cpus": 2, "memory_mb": 9},
            "no instance has 2 CPUs and 9 MB left in one piece",
        ),
    ],
)
def test_who_waits_for_one_piece_is_told_so(
    rules: dict[str, object], wishes: dict[str, int], words: str
) -> None:
    """Beside the limit that keeps the daemon from another instance; and no longer once there is one."""
    sim, run = begin(limits=few(3), **rules)
    lows = [sim.submit("htc", LONG_S, cpus=3, memory_mb=5000) for _ in range(3)]
    run.until(lambda: running(sim, *lows), 120)
    last = sim.submit("htc", 10.0, **wishes)
    run.run(30.0)
    (said,) = told(run)
    assert said.startswith(f"job {last}: an instance refused: {words}")
    assert said.endswith("(free CPUs in all: 3)")
    assert any("limits.max_instances = 3" in line(one) for one in run.cycle.last.refusals)
    run.policies = run.cycle.policies = replace(run.policies, limits=few(5))
    run.until(lambda: ended(sim, last), 120)
    assert told(run) == []


def test_where_slurm_does_not_count_memory_nothing_is_made_for_its_sake() -> None:
    """AllocMem is 0 on a node at work: all run beside one another, whatever they ask for."""
    sim = site(Manners(counts_memory=False))
    run = play(sim, policies(instances=FOUR, limits=few(2)))
    lows = [sim.submit("htc", LONG_S, cpus=3) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 120)
    last = sim.submit("htc", 10.0, cpus=2)
    run.run(10.0)
    said = "no instance has 2 CPUs left in one piece (free CPUs in all: 2)"
    assert told(run) == [f"job {last}: an instance refused: {said}"]
    run.policies = run.cycle.policies = replace(run.policies, limits=few(9))
    run.until(lambda: ended(sim, last), 120)
    more = [sim.submit("htc", LONG_S, cpus=1, memory_mb=8000) for _ in range(5)]
    run.until(lambda: running(sim, *more), 60)
    assert len(run.world.managed) == 3


@pytest.mark.parametrize("beside", [False, True])
def test_whether_slurm_counts_memory_is_still_known_once_all_are_idle(beside: bool) -> None:
    """Their memory would fit once into each instance. A job on bare metal tells it as well as one of ours."""
    sim = site(Manners(counts_memory=False))
    run = play(sim, policies(instances=FOUR))
    first = sim.submit("metal" if beside else "htc", LONG_S if beside else 10.0, memory_mb=8000)
    run.until(lambda: running(sim, first) if beside else ended(sim, first), 120)
    run.until(lambda: not run.world.managed, 600)
    lows = [sim.submit("htc", LONG_S, cpus=1, memory_mb=8000) for _ in range(8)]
    run.until(lambda: running(sim, *lows), 120)
    assert len(run.world.managed) == 2


def test_a_wide_job_gets_as_many_instances_at_once_as_it_has_nodes() -> None:
    """Two shares would fit into one instance, which is of no use to it."""
    sim, run = begin(demand=Demand(max_nodes=3))
    wide = sim.submit("htc", 30.0, cpus=3, num_nodes=3)
    run.until(lambda: running(sim, wide), 120)
    assert len(run.world.managed) == 3
    lows = [sim.submit("htc", LONG_S, cpus=3) for _ in range(3)]
    run.until(lambda: ended(sim, wide) and running(sim, *lows), 120)
    again = sim.submit("htc", 30.0, cpus=6, num_nodes=3)  # each has one CPU left
    run.until(lambda: ended(sim, again), 120)
    assert len(run.world.managed) == 6
    assert sim.audit() == []


def test_what_instances_of_another_image_have_left_is_no_use() -> None:
    """Who asks for one looks at those alone; who takes any has what these leave."""
    sim, run = begin(environments=Environments((Environment("cms", "cms-7"),)))

    def images() -> list[str]:
        return sorted(node.image for node in run.world.managed.values())

    first = sim.submit("htc", LONG_S, cpus=3, features="cms")
    run.until(lambda: running(sim, first), 120)
    second = sim.submit("htc", LONG_S, cpus=2)
    run.until(lambda: running(sim, second), 120)
    assert images() == ["", "cms-7"]
    third = sim.submit("htc", LONG_S, cpus=2, features="cms")
    run.until(lambda: running(sim, third), 120)
    assert images() == ["", "cms-7", "cms-7"]
    others = [sim.submit("htc", LONG_S, cpus=2) for _ in range(2)]
    run.until(lambda: running(sim, *others), 60)
    assert images() == ["", "cms-7", "cms-7"]


def test_no_instance_is_made_in_vain() -> None:
    """Through an hour of jobs of all sizes each one that is begun has a job, and nobody waits for long."""
    sim, run = begin()
    made, used = set[tuple[str, int]](), set[tuple[str, int]]()
    jobs = []
    for turn in range(1800):
        if turn % 20 == 0:
            cpus, memory_mb = 1 + turn // 20 % 4, 1000 * (1 + turn // 20 * 7 % 8)
            jobs.append(sim.submit("htc", 300.0, cpus=cpus, memory_mb=memory_mb))
        run.run(2.0)
        known = run.world.managed.values()
        made |= {(node.name, node.generation) for node in known}
        used |= {(node.name, node.generation) for node in known if run.world.jobs_on(node.name)}
    assert used == made
    assert max(sim.job(job).start_s - sim.job(job).submit_s for job in jobs[:-1]) < 15.0
    assert sim.audit() == []


def test_an_idle_instance_in_which_nobody_fits_makes_way() -> None:
    """It is of the flavour before: the host has no room for one of the new flavour beside it."""
    small = replace(TWELVE, flavour=Flavour(cpus=1, memory_mb=1024))
    sim, run = begin(instances=small, hosts=("bm1",))
    lows = [sim.submit("htc", 50.0 + number) for number in range(12)]
    run.until(lambda: running(sim, *lows), 120)
    larger = replace(small, flavour=Flavour(cpus=8, memory_mb=8192))
    run.policies = run.cycle.policies = replace(run.policies, instances=larger)
    last = sim.submit("htc", 10.0, cpus=8)
    run.until(lambda: ended(sim, *lows), 120)
    run.until(lambda: ended(sim, last), 200)


def test_an_idle_instance_of_the_flavour_before_stays_for_a_job_that_fits() -> None:
    """It is removed once nobody waits any more."""
    sim, run = begin()
    low = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, low), 120)
    smaller = replace(FOUR, flavour=Flavour(cpus=2, memory_mb=4096))
    run.policies = run.cycle.policies = replace(run.policies, instances=smaller)
    sim.submit("htc", 10.0, cpus=2, required_nodes=("bm9",))  # which is never there
    run.run(200.0)
    assert len(phases(run, Phase.READY)) == 1
