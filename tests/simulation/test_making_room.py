"""Room for stopped work that can hardly wait: idle ones make way, and who ends soon takes no new job."""

from __future__ import annotations

import pytest

from backfill.core.model.actions import UndrainNode
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.pilots import slot_of
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.supply import Supply
from backfill.core.policies.workloads import Workload, Workloads
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

PAUSE = RungRule(Rung.PAUSE, within_s=1.0, for_s=90.0)
MOVING = (PAUSE, RungRule(Rung.MIGRATE), RungRule(Rung.REQUEUE))
TO_DISK = (RungRule(Rung.SUSPEND, within_s=60.0, for_s=90.0), *MOVING[1:])
STAYING = (PAUSE, RungRule(Rung.REQUEUE))

SUPPLY = Supply(most=2, user="pilot", partition="htc", script="/pilot.sh", seen_after_s=10.0)
UNSUPPLIED = Supply()


def few_hosts(
    *rungs: RungRule,
    stand_still_s: float | None = 100.0,
    supply: Supply = UNSUPPLIED,
    hosts: int = 2,
    each: int = 1,
) -> tuple[SimulatedWorld, Rehearsal]:
    """Hosts with room for so many instances, which are kept while they idle; no limit forbids a third."""
    sim, names = cluster(cpus=each), tuple(f"bm{number}" for number in range(1, hosts + 1))
    for name in names[2:]:
        sim.add_host(name, cpus=each, features=("metal",))
    pilots = Workload("pilot", stand_still_s=stand_still_s, ladder=rungs or MOVING)
    limits = Limits(destroys_per_min=6, max_instances=3 * each, max_per_host=each)
    scale, workloads = Scale(idle_s=3000.0), Workloads((pilots,))
    rules = policies(workloads=workloads, limits=limits, scale=scale, supply=supply, hosts=names)
    return sim, play(sim, rules)


def host_of(run: Rehearsal, sim: SimulatedWorld, job: str) -> str:
    (name,) = sim.job(job).nodes
    return run.world.managed[name].host


def take(sim: SimulatedWorld, host: str, for_s: float = 500.0) -> str:
    """Somebody whose time limit says that he stays for 600 s gets the host."""
    return sim.submit("batch", for_s, time_limit_s=600.0, required_nodes=(host,))


def sent(sim: SimulatedWorld) -> list[str]:
    """The pilots that the daemon has sent, in that order."""
    jobs = sim.slurm.observe().jobs.values()
    return sorted((job.id for job in jobs if slot_of(job.name, job.comment) is not None), key=int)


def opened(run: Rehearsal, name: str, since_s: float) -> list[float]:
    """When the daemon opened a node to jobs since then: Slurm would start one there at once."""
    steps = run.journal.read(subject=name, types=(UndrainNode.__name__,))
    return [step.at_s for step in steps if step.at_s > since_s]


def known(run: Rehearsal, sim: SimulatedWorld) -> None:
    """Jobs of half a minute have been at work on both hosts, so that it is known how long such jobs run."""
    jobs = [sim.submit("htc", 30.0) for _ in range(4)]
    run.until(lambda: ended(sim, *jobs), 300)


def test_an_idle_one_elsewhere_makes_way_at_once() -> None:
    """The stay outlasts the patience: without that room the pilot would start over."""
    sim, run = few_hosts()
    low, other = sim.submit("htc", 1000.0), sim.submit("htc", 20.0)
    run.until(lambda: running(sim, low, other), 60)
    elsewhere = host_of(run, sim, other)
    run.until(lambda: ended(sim, other), 60)
    run.run(10.0)
    take(sim, host_of(run, sim, low))
    run.until(lambda: run.sim.job(low).state is JobState.SUSPENDED, 20)
    run.until(lambda: running(sim, low) and host_of(run, sim, low) == elsewhere, 60)
    run.until(lambda: ended(sim, low), 2000)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_who_is_about_to_end_takes_no_new_job() -> None:
    """A job waits in the queue: the room of the one that ends is the stopped pilot's all the same."""
    sim, run = few_hosts()
    known(run, sim)
    low, other = sim.submit("htc", 1000.0), sim.submit("htc", 30.0)
    run.until(lambda: running(sim, low, other), 60)
    elsewhere, waits = host_of(run, sim, other), sim.submit("htc", 1000.0)
    run.run(5.0)
    high = take(sim, host_of(run, sim, low))
    run.until(lambda: phases(run, Phase.PARKED) != set(), 20)
    (stopped,), stopped_s = phases(run, Phase.PARKED), sim.now_s
    assert "it waits for a job that may end in time" in run.world.managed[stopped].reason
    run.run(1.0)
    said = [why(refusal) for refusal in run.cycle.last.refusals]
    assert any("once its job has ended, its room is for stopped work" in text for text in said)
    run.until(lambda: running(sim, low) and host_of(run, sim, low) == elsewhere, 60)
    (name,) = sim.job(other).nodes
    assert opened(run, name, stopped_s) == []
    assert sim.job(waits).state is JobState.PENDING
    run.until(lambda: ended(sim, low, waits, high), 4000)
    assert [sim.job(one).restarts for one in (low, other, waits)] == [0, 0, 0]
    assert sim.audit() == []


def test_a_host_that_is_free_again_opens_the_others() -> None:
    """The stay was short after all: nobody needs that room, and the node that was closed takes jobs."""
    sim, run = few_hosts()
    known(run, sim)
    low, other = sim.submit("htc", 1000.0), sim.submit("htc", 30.0)
    run.until(lambda: running(sim, low, other), 60)
    (name,) = sim.job(other).nodes
    run.run(5.0)
    take(sim, host_of(run, sim, low), for_s=8.0)
    run.until(lambda: run.world.nodes[name].drained_by_us, 20)
    run.until(lambda: not run.world.nodes[name].drained, 60)
    again = sim.submit("htc", 30.0)
    run.until(lambda: ended(sim, again), 200)
    assert (sim.job(low).restarts, running(sim, low)) == (0, True)
    assert sim.audit() == []


def test_a_stopped_pilot_has_the_room_before_a_new_one() -> None:
    """Payloads wait in the pool, and a pilot goes: its room is that of the stopped one, and none is sent."""
    sim, run = few_hosts(supply=SUPPLY)
    known(run, sim)
    for _ in range(9):
        sim.pool.add(3000.0)
    run.until(lambda: len(pilots := sent(sim)) == 2 and running(sim, *pilots), 60)
    low, other = sent(sim)
    elsewhere = host_of(run, sim, other)
    take(sim, host_of(run, sim, low))
    run.until(lambda: phases(run, Phase.PARKED) != set(), 20)
    sim.user_cancel(other)
    run.until(lambda: running(sim, low) and host_of(run, sim, low) == elsewhere, 60)
    assert sent(sim) == [low, other]
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def on_its_way_to_disk(supply: Supply = UNSUPPLIED, each: int = 1) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job whose host was taken, with its memory on its way to disk, while another host is empty."""
    sim, run = few_hosts(*TO_DISK, supply=supply, each=each)
    low = sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, low), 60)
    run.run(5.0)
    take(sim, host_of(run, sim, low))
    run.until(lambda: phases(run, Phase.PARKED) != set(), 20)
    assert run.world.busy(*sim.job(low).nodes)
    return sim, run, low


def goes_on(run: Rehearsal, sim: SimulatedWorld, low: str) -> None:
    """It does so on the empty host, where it was."""
    home = host_of(run, sim, low)
    run.until(lambda: running(sim, low), 90)
    assert host_of(run, sim, low) != home
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_no_new_instance_takes_the_room_of_what_is_on_its_way_to_disk() -> None:
    """A job waits in the queue."""
    sim, run, low = on_its_way_to_disk()
    waits = sim.submit("htc", 1000.0)
    goes_on(run, sim, low)
    assert sim.job(waits).state is JobState.PENDING


def test_new_instances_take_what_that_work_leaves_of_a_host() -> None:
    """The empty host has room for three: one of it is kept."""
    sim, run, low = on_its_way_to_disk(each=3)
    waits = [sim.submit("htc", 1000.0) for _ in range(3)]
    run.until(lambda: len(phases(run, Phase.BOOTING)) == 2, 20)
    assert phases(run, Phase.PARKED) == set(sim.job(low).nodes)
    goes_on(run, sim, low)
    run.until(lambda: sum(running(sim, one) for one in waits) == 2, 30)
    run.run(30.0)
    assert sum(sim.job(one).state is JobState.PENDING for one in waits) == 1


def test_no_pilot_is_sent_for_the_room_of_what_is_on_its_way_to_disk() -> None:
    """A payload waits in the pool."""
    sim, run, low = on_its_way_to_disk(SUPPLY)
    sim.pool.add(3000.0)
    goes_on(run, sim, low)
    assert sent(sim) == []


def test_no_idle_one_goes_where_room_is_free() -> None:
    """It is needed only once memory is on disk, and the idle one elsewhere is not in its way."""
    sim, run = few_hosts(*TO_DISK, hosts=3)
    low, other = sim.submit("htc", 1000.0), sim.submit("htc", 20.0)
    run.until(lambda: running(sim, low, other), 60)
    (idle,) = sim.job(other).nodes
    run.until(lambda: ended(sim, other), 60)
    run.run(5.0)
    take(sim, host_of(run, sim, low))
    run.until(lambda: sim.job(low).state is JobState.SUSPENDED, 20)
    run.until(lambda: running(sim, low), 90)
    assert run.world.managed[idle].phase is Phase.READY
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize(("rungs", "stand_still_s"), [(STAYING, 100.0), (MOVING, None)])
def test_nobody_makes_way_for_what_cannot_move_or_can_wait(
    rungs: tuple[RungRule, ...], stand_still_s: float | None
) -> None:
    """The idle one stays where it is."""
    sim, run = few_hosts(*rungs, stand_still_s=stand_still_s)
    low, other = sim.submit("htc", 1000.0), sim.submit("htc", 20.0)
    run.until(lambda: running(sim, low, other), 60)
    (idle,) = sim.job(other).nodes
    run.until(lambda: ended(sim, other), 60)
    run.run(10.0)
    take(sim, host_of(run, sim, low), for_s=60.0)
    run.run(50.0)
    assert run.world.managed[idle].phase is Phase.READY
    assert sim.audit() == []
