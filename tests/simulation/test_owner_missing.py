"""A job with machines of its own that Slurm does not show at a moment: nothing of them is touched by that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backfill.core.model.actions import ReturnDevices
from backfill.core.model.cluster import JobState
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.limits import Limits
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.execute.devices import lend
from backfill.engine.looking import Outside
from backfill.ports.workload import ClusterObservation
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation import test_own_machines as own_machines
from tests.simulation.device_cluster import functions
from tests.simulation.policy_cluster import cluster, ended, policies, running
from tests.simulation.test_inside import INSIDE, WORD, allocated, at, nothing_left, outer, state

MISSING_S = 60.0
LIMITS = Limits(boots_at_once=12, removals_at_once=12, missing_s=MISSING_S)
EVERY_CALL = ("observe", "observe_nodes", "read_jobs")


def hide(sim: SimulatedWorld, job: str, lasts_s: float, *calls: str) -> None:
    """Let such readings of Slurm lack the job for a while; where none is named, one of everything does."""
    until_s, times = sim.now_s + lasts_s, [-1 if calls else 1]

    def lacking(real: Callable[..., Any]) -> Callable[..., Any]:
        def read(*names: Any) -> Any:
            seen = real(*names)
            shown = seen.jobs if isinstance(seen, ClusterObservation) else seen
            if sim.now_s > until_s or job not in shown or not times[0]:
                return seen
            times[0] -= 1
            left = {key: value for key, value in shown.items() if key != job}
            return replace(seen, jobs=left) if isinstance(seen, ClusterObservation) else left

        return read

    for call in calls or ("observe",):
        setattr(sim.slurm, call, lacking(getattr(sim.slurm, call)))


def at_work(
    *, hooks: bool = False, devices: bool = False, ran_s: float = 10.0, **wishes: object
) -> tuple[SimulatedWorld, Rehearsal, str, str]:
    """A job with two machines on its nodes, and one of the same owner that runs in both."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    run = Rehearsal(sim, policies(own_machines=INSIDE, limits=LIMITS), MemoryJournal(), hooks=hooks)
    job = outer(sim, 900.0, f"{WORD}:per_node=1,mem=512{',sriov=1' if devices else ''}")
    run.until(lambda: allocated(run, job), 160)
    inner = sim.submit("htc", 300.0, within=job, num_nodes=2, cpus=2, **wishes)  # type: ignore[arg-type]
    run.until(lambda: running(sim, inner), 60)
    run.run(ran_s)
    return sim, run, job, inner


def picture(sim: SimulatedWorld, run: Rehearsal, job: str, inner: str) -> tuple[object, ...]:
    """Whatever must stay as it is."""
    nodes = sorted((m.name, m.generation, m.phase) for m in run.world.managed.values())
    drained = [name for name in run.world.managed if run.world.nodes[name].drained]
    return (
        nodes,
        drained,
        sim.job(inner).state,
        sim.job(inner).restarts,
        at(sim, job),
        state(run, job),
        sim.provider.holdings(),
    )


def told(run: Rehearsal, job: str) -> list[str]:
    return [why(r) for r in run.cycle.last.refusals if r.subject == f"job {job}"]


@pytest.mark.parametrize("calls", [(), EVERY_CALL])
@pytest.mark.parametrize("ran_s", [10.0, 100.0])
@pytest.mark.parametrize("hooks", [False, True])
def test_machines_within_an_allocation_stay_as_they_are(
    hooks: bool, ran_s: float, calls: tuple[str, ...]
) -> None:
    """Nothing is paused, requeued, ended, unplugged or made anew, and the job keeps its word."""
    sim, run, job, inner = at_work(hooks=hooks, devices=True, ran_s=ran_s, requeue=not calls)
    before, said, seen = picture(sim, run, job, inner), list[str](), list[tuple[object, ...]]()
    hide(sim, job, 2.5, *calls)
    for _ in range(80):
        run.run(0.25)
        said += told(run, job)
        seen.append(picture(sim, run, job, inner))
    assert [one for one in seen if one != before] == []
    assert any(f"Slurm does not show job {job}" in one for one in said)
    sim.finish_job(job)
    run.until(lambda: nothing_left(run, sim), 30)
    assert sim.provider.holdings() == ()


@pytest.mark.parametrize("hooks", [False, True])
def test_they_go_when_their_job_was_missing_for_long(hooks: bool) -> None:
    """Slurm never shows its end: what is in them ends, and its devices are free, but not before."""
    sim, run, job, inner = at_work(hooks=hooks, devices=True, requeue=False)
    hide(sim, job, 10_000.0, *EVERY_CALL)
    run.run(MISSING_S - 5.0)
    assert running(sim, inner)
    sim.finish_job(job)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.job(inner).state is JobState.CANCELLED
    assert sim.provider.holdings() == ()


def test_devices_are_left_with_whom_slurm_shows_at_the_last_moment() -> None:
    """It is on bare-metal nodes, and not on the machine that has them."""
    sim, run, job, _ = at_work(devices=True)
    name, node = next(iter(run.world.managed.items()))
    outside = Outside(sim.slurm, dict.fromkeys(sim.hosts, sim.provider), sim.clock)
    action = ReturnDevices(subject=name, generation=1, reason="a test", host=node.host, of=job)
    before = sim.provider.holdings()
    assert lend(outside, action)
    assert sim.provider.holdings() == before
    sim.finish_job(job)
    lend(outside, action)
    assert [holding.instance for holding in sim.provider.holdings()] == [
        holding.instance for holding in before if holding.instance != name
    ]


def test_the_next_job_gets_its_room_meanwhile() -> None:
    """Whoever was given the nodes since then has them: what is there stands still until it is known."""
    sim, run, job, inner = at_work(hooks=True, requeue=False)
    hide(sim, job, 10_000.0, *EVERY_CALL)
    run.run(3.0)
    sim.finish_job(job)
    after = sim.submit("batch", 20.0, num_nodes=2, cpus=8, exclusive=True)
    run.until(lambda: running(sim, after), 30)
    assert {node.phase for node in run.world.managed.values()} <= {Phase.PARKED, Phase.EVICTING}
    run.until(lambda: nothing_left(run, sim), 2 * MISSING_S)
    assert sim.job(inner).state is JobState.CANCELLED


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_daemon_that_begins_without_a_sight_of_the_job_waits(forgotten: bool) -> None:
    """Its first readings lack it; with its journal or without."""
    sim, run, job, inner = at_work(ran_s=5.0)
    lives = {(m.name, m.generation) for m in run.world.managed.values()}
    run.kill()
    if forgotten:
        run.journal = MemoryJournal()
    hide(sim, job, 5.0, *EVERY_CALL)
    run.start()
    run.run(30.0)
    assert (sim.job(inner).state, sim.job(inner).restarts) == (JobState.RUNNING, 0)
    assert {(m.name, m.generation) for m in run.world.managed.values()} == lives
    assert allocated(run, job)
    sim.finish_job(job)
    run.until(lambda: nothing_left(run, sim), 30)


def test_a_daemon_that_never_sees_the_job_clears_what_it_has_left() -> None:
    """It ended while there was no daemon, and Slurm has forgotten it."""
    sim, run, job, inner = at_work(requeue=False)
    run.kill()
    hide(sim, job, 10_000.0, *EVERY_CALL)
    sim.finish_job(job)
    run.start()
    run.until(lambda: nothing_left(run, sim), 2 * MISSING_S)
    assert sim.job(inner).state is JobState.CANCELLED


def own(**wishes: object) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job that has two machines of its own, with devices, and runs on them."""
    sim, run = own_machines.begin(limits=LIMITS)
    functions(sim, "bm1", "bm2")
    word = f"{WORD}:cpus=1,mem=256,place=spread,sriov=1"
    given = {"num_nodes": 2, "cpus": 2, "comment": word, "requeue": False, **wishes}
    job = sim.submit("htc", 300.0, **given)  # type: ignore[arg-type]  # fields of SimJob
    return sim, run, job


STEPS = (MachinesState.QUEUED, MachinesState.SPAWNING, MachinesState.SPAWNED, MachinesState.ALLOCATED)


@pytest.mark.parametrize("step", STEPS)
def test_machines_outside_an_allocation_stay_as_they_are(step: MachinesState) -> None:
    """At any step: it gets the very machines that were ordered, and they stand still together."""
    sim, run, job = own()
    run.until(lambda: state(run, job) is step, 100)
    hide(sim, job, 2.5)
    run.until(lambda: state(run, job) is MachinesState.ALLOCATED, 100)
    run.run(20.0)
    assert {m.generation for m in run.world.managed.values()} == {1}
    assert run.world.machines[job].orders == 1
    assert [h.plugged for h in sim.provider.holdings()] == [True, True]
    sim.submit("batch", 20.0, required_nodes=("bm1",), cpus=4)
    run.until(lambda: {m.phase for m in run.world.managed.values()} == {Phase.PARKED}, 30)
    run.until(lambda: ended(sim, job), 500)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.audit() == []


def test_they_go_too_when_their_job_was_missing_for_long() -> None:
    """Not before, and then with their devices."""
    sim, run, job = own()
    run.until(lambda: running(sim, job), 100)
    run.run(10.0)
    hide(sim, job, 10_000.0, *EVERY_CALL)
    run.run(MISSING_S - 5.0)
    assert len(run.world.managed) == len(sim.provider.holdings()) == 2
    sim.finish_job(job)
    run.until(lambda: nothing_left(run, sim), 2 * MISSING_S)
    assert sim.provider.holdings() == ()
