"""Machines within a job's allocation in simulated time: on its nodes, its owner's alone, gone with it."""

from __future__ import annotations

from functools import partial

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Victims
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death, nothing
from tests.simulation.policy_cluster import cluster, ended, play, policies, running

INSIDE = OwnMachines(enabled=True, inside=("batch",))
WORD = "backfill-vm"
STEPS = (MachinesState.SPAWNING, MachinesState.SPAWNED, MachinesState.ALLOCATED)


def begin(cpus: int = 4, **rules: object) -> tuple[SimulatedWorld, Rehearsal]:
    sim = cluster(cpus)
    return sim, play(sim, policies(**{"own_machines": INSIDE, **rules}))


def outer(sim: SimulatedWorld, run_s: float = 60.0, word: str = WORD, **wishes: object) -> str:
    """A job that has both bare-metal nodes to itself and asks for machines there."""
    given: dict[str, object] = {"num_nodes": 2, "cpus": 8, "exclusive": True, "comment": word}
    return sim.submit("batch", run_s, **{**given, **wishes})  # type: ignore[arg-type]  # fields of SimJob


def uneven() -> SimulatedWorld:
    """A cluster of which one node has nine CPUs, and the other one."""
    sim = SimulatedWorld()
    sim.add_partition("batch", tier=10, feature="metal")
    for host, cpus in (("bm1", 9), ("bm2", 1)):
        sim.add_host(host, cpus=cpus, features=("metal",))
    return sim


def made(run: Rehearsal, host: str) -> list[Flavour]:
    return [n.flavour for n in run.world.managed.values() if n.host == host and n.flavour is not None]


def state(run: Rehearsal, job: str) -> MachinesState | None:
    own = run.world.machines.get(job)
    return None if own is None else own.state


def allocated(run: Rehearsal, job: str) -> bool:
    return state(run, job) is MachinesState.ALLOCATED


def nothing_left(run: Rehearsal, sim: SimulatedWorld) -> bool:
    """No record, order or node is left, nor any instance."""
    world = run.world
    outside = any(host.instances for host in sim.hosts.values())
    return not (world.machines or world.fleets or world.managed or outside)


def at(sim: SimulatedWorld, job: str) -> tuple[str, ...]:
    """The machines of which the job has been told."""
    machines = sim.job(job).machines
    return () if machines is None else machines.at


def test_a_job_gets_machines_on_its_very_nodes_and_they_go_with_it() -> None:
    """Two on each of its nodes, an equal part of what it got; its owner's jobs run there, and end with it."""
    sim, run = begin()
    job = outer(sim, 60.0, f"{WORD}:per_node=2,mem=512")
    seen: list[MachinesState] = []

    def there() -> bool:
        now = state(run, job)
        if now is not None and now not in seen[-1:]:
            seen.append(now)
        return allocated(run, job)

    run.until(there, 60)
    assert seen[-1] is MachinesState.ALLOCATED
    nodes = run.world.managed.values()
    assert sorted(node.host for node in nodes) == ["bm1", "bm1", "bm2", "bm2"]
    assert {run.world.nodes[node.name].cpus for node in nodes} == {2}
    assert set(at(sim, job)) == {node.name for node in nodes}
    short = sim.submit("htc", 5.0, within=job, num_nodes=4, cpus=8)
    run.until(lambda: ended(sim, short), 20)
    left = sim.submit("htc", 500.0, within=job, requeue=False)
    run.until(lambda: running(sim, left), 10)
    run.until(lambda: ended(sim, job), 60)
    run.until(lambda: nothing_left(run, sim), 20)
    assert sim.job(left).state is JobState.CANCELLED
    assert sim.audit() == []


def test_nobody_else_gets_in() -> None:
    """Whatever waits in the queue of everybody; nor does another user by naming the job."""
    sim, run = begin(scale=Scale(idle_s=5))
    others = [sim.submit("htc", 30.0, priority=1000) for _ in range(6)]
    job = outer(sim, 60.0)
    stranger = sim.submit("htc", 5.0, within=job, user="somebody")
    strange: list[str] = []

    def over() -> bool:
        theirs = [node for node in run.world.managed.values() if node.job == job]
        strange.extend(j.id for n in theirs for j in run.world.jobs_on(n.name))
        return ended(sim, job)

    run.until(lambda: allocated(run, job), 60)
    run.until(over, 100)
    run.until(lambda: ended(sim, *others), 300)
    assert strange == []
    assert sim.job(stranger).state is JobState.PENDING
    sim.user_cancel(stranger)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.audit() == []


def test_what_was_there_has_left_before_they_are_made() -> None:
    """The hosts are full of instances with jobs: these stand still, and go on when the job has ended."""
    sim, run = begin()
    low = [sim.submit("htc", 40.0) for _ in range(8)]
    run.until(lambda: running(sim, *low), 60)
    job = outer(sim, 30.0)
    run.until(lambda: allocated(run, job), 60)
    assert {node.phase for node in run.world.managed.values() if not node.job} == {Phase.PARKED}
    run.until(lambda: ended(sim, job, *low), 300)
    run.until(lambda: nothing_left(run, sim), 100)
    assert all(sim.job(one).restarts == 0 for one in low)
    assert sim.audit() == []


@pytest.mark.parametrize(
    ("word", "by_cpu", "shape"),
    [
        (WORD, True, (1, 400)),
        (f"{WORD}:mem=256", True, (1, 256)),
        (WORD, False, (1, 2000)),
        (f"{WORD}:mem=1900", False, (1, 1900)),
    ],
)
def test_where_the_nodes_give_unequally_all_are_as_large_as_the_smallest_allows(
    word: str, by_cpu: bool, shape: tuple[int, int]
) -> None:
    """Nine CPUs on one and one on the other: an equal part of all would be more than the other gave.

    Memory that is asked for by the node, it gave in full.
    """
    sim = uneven()
    run = play(sim, policies(own_machines=INSIDE))
    job = outer(sim, word=word, cpus=2, memory_mb=2000, memory_by_cpu=by_cpu)
    run.until(lambda: allocated(run, job), 60)
    shapes = [(node.cpus, node.memory_mb) for host in ("bm1", "bm2") for node in made(run, host)]
    assert shapes == [shape, shape]
    run.until(lambda: nothing_left(run, sim), 200)
    assert sim.audit() == []


def test_more_than_the_smallest_of_its_nodes_gave_is_refused() -> None:
    """As everywhere, with what it got there."""
    sim = uneven()
    run = play(sim, policies(own_machines=INSIDE))
    job = outer(sim, word=f"{WORD}:cpus=5", cpus=2)
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 60)
    reason = run.world.machines[job].reason
    assert "take 5 CPUs" in reason
    assert "the job got 1 CPUs there" in reason


@pytest.mark.parametrize("step", STEPS)
def test_cancelled_at_any_step_nothing_of_it_stays(step: MachinesState) -> None:
    """The next job gets the nodes, and machines of its own."""
    sim, run = begin()
    job = outer(sim, 100.0)
    run.until(lambda: state(run, job) is step, 60)
    inner = sim.submit("htc", 500.0, within=job, requeue=False) if step is STEPS[-1] else ""
    run.run(1.0 if inner else 0.0)
    sim.user_cancel(job)
    after = outer(sim, 20.0)
    run.until(lambda: ended(sim, after), 100)
    run.until(lambda: nothing_left(run, sim), 30)
    assert not inner or sim.job(inner).state is JobState.CANCELLED
    assert sim.audit() == []


@pytest.mark.parametrize("step", STEPS)
def test_the_next_job_gets_nodes_on_which_nothing_runs(step: MachinesState) -> None:
    """It begins in the moment in which this one ends, whatever is being made there."""
    sim, run = begin(cpus=2)
    job = outer(sim, 100.0, cpus=4)
    after = sim.submit("batch", 10.0, num_nodes=2, cpus=4, exclusive=True)
    run.until(lambda: state(run, job) is step, 60)
    if step is STEPS[-1]:
        sim.submit("htc", 500.0, within=job, requeue=False)
        run.run(2.0)
    sim.finish_job(job)
    run.until(lambda: ended(sim, after), 60)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.audit() == []


def test_its_time_limit_and_a_requeue_end_them_too() -> None:
    """A requeued job gets new ones when it begins again; the copies of its first run are gone by then."""
    sim, run = begin()
    job = outer(sim, 40.0, time_limit_s=600.0)
    run.until(lambda: allocated(run, job), 60)
    before = {(node.name, node.generation) for node in run.world.managed.values()}
    sim.submit("htc", 500.0, within=job, requeue=False)
    sim.requeue_behind(job, delay_s=5.0)
    run.until(lambda: run.world.machines.get(job) is None, 30)
    run.until(lambda: allocated(run, job), 60)
    assert before.isdisjoint((node.name, node.generation) for node in run.world.managed.values())
    machines = sim.job(job).machines
    assert machines is not None
    assert machines.run == 1
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)
    limited = outer(sim, 500.0, time_limit_s=60.0)
    run.until(lambda: sim.job(limited).state is JobState.TIMEOUT and nothing_left(run, sim), 100)
    assert [v for v in sim.audit() if v.kind != "timeout"] == []


def test_they_stand_still_with_their_job() -> None:
    """Somebody suspends it, and lets it go on: so do they."""
    sim, run = begin()
    job = outer(sim, 100.0)
    run.until(lambda: allocated(run, job), 60)
    inner = sim.submit("htc", 30.0, within=job, num_nodes=2, cpus=2)
    run.until(lambda: running(sim, inner), 10)
    sim.admin_suspend(job)
    run.until(lambda: {node.phase for node in run.world.managed.values()} == {Phase.PARKED}, 30)
    assert sim.job(inner).state is JobState.SUSPENDED
    sim.admin_resume(job)
    run.until(lambda: ended(sim, inner), 100)
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 150)
    assert sim.job(inner).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("step", STEPS)
def test_where_a_machine_dies_all_are_made_anew(step: MachinesState) -> None:
    """The job itself goes on meanwhile, and is told of the new ones."""
    sim, run = begin()
    job = outer(sim, 300.0)
    run.until(lambda: state(run, job) is step, 60)
    run.until(lambda: any(h.instances for h in sim.hosts.values()), 10)
    first = at(sim, job)
    sim.crash_instance(next(name for h in sim.hosts.values() for name in h.instances))
    run.until(
        lambda: allocated(run, job) and (step is not STEPS[-1] or run.world.machines[job].orders == 2), 250
    )
    assert len(at(sim, job)) == 2
    assert step is not STEPS[-1] or first
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 400)
    assert sim.audit() == []


def test_a_host_that_loses_its_power_takes_the_job_with_it() -> None:
    """What is left on the other host goes at once; the rest when the host is back."""
    sim, run = begin()
    job = outer(sim, 300.0, requeue=False)
    run.until(lambda: allocated(run, job), 60)
    sim.submit("htc", 500.0, within=job, requeue=False)
    run.run(2.0)
    sim.kill_host("bm1")
    sim.slurm.set_down("bm1", "it is dead")
    run.run(30.0)
    assert not sim.hosts["bm2"].instances
    sim.power_host("bm1", 5.0)
    sim.admin_drain("bm1", "")
    run.until(lambda: nothing_left(run, sim), 200)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("per_node=2,cpus=3", "2 on each of its nodes take 6 CPUs"),
        ("disk=20000", "own_machines.most_disk_gb allows 20"),
    ],
)
def test_what_can_never_be_is_told(word: str, said: str) -> None:
    """The job runs all the same, and its owner reads why it has none."""
    sim, run = begin()
    job = outer(sim, 30.0, f"{WORD}:{word}")
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 30)
    run.until(lambda: said in sim.slurm.admin_comment(job), 5)
    assert any(said in why(r) for r in run.cycle.last.refusals if r.subject == f"job {job}")
    assert not run.world.managed
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 60)


def test_a_word_of_the_owners_own_about_names_counts_for_nothing() -> None:
    """Which machines there are is for us to say."""
    sim, run = begin()
    job = outer(sim, 20.0, f"{WORD}:at=vn9+vn10")
    assert at(sim, job) == ()
    run.until(lambda: allocated(run, job), 30)
    assert set(at(sim, job)) == run.world.managed.keys()


def test_what_the_site_has_written_stays_and_the_job_is_told_all_the_same() -> None:
    """Only the word behind it is ours to replace."""
    sim, run = begin()
    job = outer(sim, admin_comment=f"jobstats: v2 {WORD}", comment="")
    run.until(lambda: allocated(run, job), 60)
    assert set(at(sim, job)) == set(run.world.managed)
    assert sim.slurm.admin_comment(job).startswith(f"jobstats: v2 {WORD}:at=")
    run.until(lambda: nothing_left(run, sim), 200)
    assert sim.audit() == []


def test_elsewhere_a_word_asks_for_no_such_machines() -> None:
    """Without `inside`, and in partitions that are not named there, a bare-metal job gets none."""
    sim, run = begin(own_machines=OwnMachines(enabled=True))
    job = outer(sim, 10.0)
    run.until(lambda: ended(sim, job), 30)
    assert not any(r.body.get("t") == "CreateInstance" for r in run.journal.read())


def test_a_daemon_without_its_journal_finds_them_as_they_are() -> None:
    """What runs in them goes on all the time, and they go with the job."""
    sim, run = begin()
    job = outer(sim, 100.0)
    run.until(lambda: allocated(run, job), 60)
    inner = sim.submit("htc", 50.0, within=job, num_nodes=2, cpus=2, requeue=False)
    left = sim.submit("htc", 500.0, within=job, requeue=False)
    run.until(lambda: running(sim, inner, left), 10)
    before = set(at(sim, job))
    run.kill()
    run.journal = MemoryJournal()
    run.start()
    stopped: list[str] = []

    def over() -> bool:
        states = {i.state for host in sim.hosts.values() for i in host.instances.values()}
        stopped.extend(state for state in states if state is InstanceState.PAUSED)
        return ended(sim, inner)

    run.until(over, 60)
    assert stopped == []
    assert allocated(run, job)
    assert {node.name for node in run.world.managed.values()} == before == set(at(sim, job))
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)
    assert sim.job(left).state is JobState.CANCELLED
    assert sim.audit() == []


@pytest.mark.parametrize("extent", list(Extent))
def test_jobs_that_share_hosts_have_machines_beside_one_another(extent: Extent) -> None:
    """Each in its part of the host: who comes or goes does not stop the machines of the other."""
    sim, run = begin(victims=Victims(extent=extent))
    sim.checks.shared = True
    first = outer(sim, 120.0, cpus=4, exclusive=False)
    run.until(lambda: allocated(run, first), 60)
    stopped: list[str] = []

    def look(done: bool) -> bool:
        theirs = {node.name for node in run.world.managed.values() if node.job == first}
        there = [i for host in sim.hosts.values() for i in host.instances.values()]
        stopped.extend(i.spec.name for i in there if i.spec.name in theirs and not i.machine.on)
        return done

    second = outer(sim, 30.0, cpus=4, exclusive=False)
    third = outer(sim, 20.0, "", cpus=4, exclusive=False)
    run.until(lambda: look(allocated(run, second)), 60)
    run.until(lambda: look(ended(sim, second, third)), 100)
    assert allocated(run, first)
    assert stopped == []
    run.until(lambda: ended(sim, first) and nothing_left(run, sim), 150)
    assert sim.audit() == []


def killed_after(number: int, *, cancel: bool) -> bool:
    """A job with two machines and a job in them, the daemon killed after one step; was there such a step?"""
    sim, run = begin(cpus=2)
    job = outer(sim, 25.0, cpus=4)
    inner: list[str] = []
    death = Death(run, number, meanwhile=partial(sim.user_cancel, job) if cancel else nothing)

    def over() -> bool:
        if not inner and at(sim, job):
            inner.append(sim.submit("htc", 500.0, within=job, num_nodes=2, cpus=2, requeue=False))
        done = ended(sim, job) or sim.job(job).state is JobState.CANCELLED
        return done and run.alive and nothing_left(run, sim)

    run.until(over, 400)
    run.until(lambda: all(sim.job(one).state is not JobState.RUNNING for one in inner), 10)
    assert [v for v in sim.audit() if v.kind != "room" or "still had CPU" in v.text] == []
    after = sim.submit("batch", 5.0, num_nodes=2, cpus=4, exclusive=True)
    run.until(lambda: ended(sim, after), 60)
    return death.at_s is not None


@pytest.mark.parametrize("cancel", [False, True])
def test_a_daemon_killed_after_any_step_leaves_nothing(cancel: bool) -> None:
    """Nothing runs on after the job's end, and nothing is orphaned; cancelled meanwhile or not."""
    number = 1
    while killed_after(number, cancel=cancel):
        number += 1
    assert number > 25
