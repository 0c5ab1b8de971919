"""One odd reading of Slurm or of a hypervisor: told, waited for, and never acted upon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core.model.changes import Claimed
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.hypervisor.hardware import SimInstance
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.provider import HostObservation
from backfill.ports.workload import ClusterObservation
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

TWO = Flavour(cpus=2, memory_mb=512)


def at_work(*, requeue: bool, jobs: int = 8) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Jobs run on two hosts, each in an instance of its own."""
    sim = cluster(cpus=jobs // 2)
    rules = policies(scale=Scale(idle_s=600), limits=Limits(boots_at_once=12))
    run = play(sim, rules)
    lows = [sim.submit("htc", 600.0, requeue=requeue) for _ in range(jobs)]
    run.until(lambda: running(sim, *lows), 60)
    return sim, run, lows


def aside(*, requeue: bool) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """The same, and all of them stand still for five minutes."""
    sim, run, lows = at_work(requeue=requeue)
    for host in ("bm1", "bm2"):
        sim.submit("batch", 300.0, required_nodes=(host,))
    run.until(lambda: len(phases(run, Phase.PARKED)) == len(lows), 30)
    return sim, run, lows


def intact(sim: SimulatedWorld, lows: list[str]) -> bool:
    """Whether no job has lost anything."""
    seen = [sim.job(low) for low in lows]
    return all(j.restarts == 0 and j.state is not JobState.CANCELLED for j in seen)


def instances(sim: SimulatedWorld) -> list[SimInstance]:
    return [i for host in sim.hosts.values() for i in host.instances.values()]


def instance_of(sim: SimulatedWorld, name: str) -> list[SimInstance]:
    return [host.instances[name] for host in sim.hosts.values() if name in host.instances]


def told(run: Rehearsal, subject: str) -> str:
    """What is not believed of it now."""
    found = [why(r) for r in run.cycle.last.refusals if r.subject == subject]
    return "; ".join(reason for reason in found if "not believed" in reason)


def without_jobs(real: Callable[..., ClusterObservation]) -> Callable[..., ClusterObservation]:
    return lambda *names: replace(real(*names), jobs={})


def test_a_job_that_was_not_shown_as_its_crashed_guest_went_ends_as_well() -> None:
    """It may not start over, and nothing of it is left: it is ended, not shown as running for ever."""
    sim, run, (low, _) = at_work(requeue=False, jobs=2)
    (name,) = sim.job(low).nodes
    sim.crash_instance(name)
    run.run(9.0)
    run.kill()
    forgets = sim.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
    run.start()
    run.until(lambda: run.world.managed[name].phase is Phase.REMOVING and not instance_of(sim, name), 10)
    forgets.end()
    run.until(lambda: sim.job(low).state is JobState.CANCELLED, 900)
    run.until(lambda: name not in run.world.nodes, 60)
    assert sim.audit() == []


def test_a_job_that_was_forgotten_before_its_end_was_read_keeps_no_node_for_ever() -> None:
    """MinJobAge is short, or readings are slow: its node goes when it was missed for long."""
    sim = SimulatedWorld(manners=Manners(job_age_s=0.1))
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_host("bm1", cpus=2, features=("metal",))
    run = Rehearsal(sim, policies(scale=Scale(idle_s=20)), MemoryJournal(), hooks=False)
    job = sim.submit("htc", 21.3)
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 60)
    run.run(500.0)
    assert run.world.managed["vn1"].phase is Phase.DRAINING
    run.until(lambda: not run.world.managed, 300)
    assert sim.audit() == []


@pytest.mark.parametrize("requeue", [True, False])
def test_one_reading_of_slurm_without_jobs(requeue: bool) -> None:
    """The next one shows them again; meanwhile it is told that this one is not believed."""
    sim, run, lows = aside(requeue=requeue)
    real = sim.slurm.observe
    sim.slurm.observe = without_jobs(real)  # type: ignore[method-assign]
    before_s = run.world.source_read_s("slurm")
    run.until(lambda: "it shows 0 of" in told(run, "cluster"), 10)
    sim.slurm.observe = real  # type: ignore[method-assign]
    run.until(lambda: run.world.source_read_s("slurm") > before_s, 10)
    assert told(run, "cluster") == ""
    run.until(lambda: ended(sim, *lows), 1500)
    assert intact(sim, lows)
    assert sim.audit() == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("requeue", [True, False])
def test_a_slurm_without_jobs_for_minutes(requeue: bool, restart: bool) -> None:
    """Cold state, by every question: also a daemon that begins then destroys nothing."""
    sim, run, lows = aside(requeue=requeue)
    real = sim.slurm.observe, sim.slurm.observe_nodes, sim.slurm.read_jobs
    sim.slurm.observe = without_jobs(real[0])  # type: ignore[method-assign]
    sim.slurm.observe_nodes = without_jobs(real[1])  # type: ignore[method-assign]
    sim.slurm.read_jobs = lambda ids: {}  # type: ignore[method-assign]
    if restart:
        run.kill()
        run.start()
    run.run(240.0)
    assert not phases(run, Phase.REMOVING)
    assert sum(len(host.instances) for host in sim.hosts.values()) == len(lows)
    sim.slurm.observe, sim.slurm.observe_nodes, sim.slurm.read_jobs = real  # type: ignore[method-assign]
    run.until(lambda: ended(sim, *lows), 1500)
    assert intact(sim, lows)
    assert sim.audit() == []


def test_slurm_without_jobs_while_they_run() -> None:
    """Nothing stands still: idle, by such a reading, the nodes are not taken away."""
    sim, run, lows = at_work(requeue=False)
    run.cycle.policies = replace(run.policies, scale=Scale(idle_s=5))
    real = sim.slurm.observe, sim.slurm.observe_nodes
    sim.slurm.observe = without_jobs(real[0])  # type: ignore[method-assign]
    sim.slurm.observe_nodes = without_jobs(real[1])  # type: ignore[method-assign]
    run.run(120.0)
    sim.slurm.observe, sim.slurm.observe_nodes = real  # type: ignore[method-assign]
    run.until(lambda: ended(sim, *lows), 900)
    assert intact(sim, lows)
    assert sim.audit() == []


@pytest.mark.parametrize("out_s", [2.5, 45.0])
@pytest.mark.parametrize("requeue", [True, False])
def test_hypervisors_that_show_no_instance(requeue: bool, out_s: float) -> None:
    """libvirtd of each host answers without its guests, which go on."""
    sim, run, lows = at_work(requeue=requeue)
    real = sim.provider.observe

    def empty(host: str) -> HostObservation:
        return replace(real(host), instances={})

    sim.provider.observe = empty  # type: ignore[method-assign]
    run.until(lambda: bool(told(run, "bm1") and told(run, "bm2")), 10)
    run.run(out_s)
    sim.provider.observe = real  # type: ignore[method-assign]
    assert not phases(run, Phase.REMOVING)
    run.until(lambda: ended(sim, *lows), 900)
    assert intact(sim, lows)
    assert sim.audit() == []


def test_a_host_that_is_wanted_while_it_shows_nothing_is_not_called_free() -> None:
    """The guests run: their pauses are asked for all the same, and the job begins after them."""
    sim, run, lows = at_work(requeue=True)
    real = sim.provider.observe
    sim.provider.observe = lambda host: replace(real(host), instances={})  # type: ignore[method-assign]
    run.until(lambda: bool(told(run, "bm1")), 10)
    high = sim.submit("batch", 20.0, required_nodes=("bm1",))
    run.until(lambda: running(sim, high), 10)
    assert sim.audit() == []
    sim.provider.observe = real  # type: ignore[method-assign]
    run.until(lambda: ended(sim, high, *lows), 1500)
    assert intact(sim, lows)
    assert sim.audit() == []


def test_a_guest_that_died_is_replaced() -> None:
    """What is true is believed when it was read again: one crashed, the others are there."""
    sim, run, lows = at_work(requeue=True)
    sim.crash_instance("vn1")
    crashed_s = sim.now_s
    run.until(lambda: run.world.managed["vn1"].phase is Phase.REMOVING, 60)
    assert sim.now_s >= crashed_s + run.policies.limits.sure_after_s
    run.until(lambda: ended(sim, *lows), 1500)
    assert sum(sim.job(low).restarts for low in lows) == 1


def test_all_jobs_cancelled_at_once_come_to_an_end_at_the_capped_rate() -> None:
    """True mass events: an admin cancels everything that stands still."""
    sim, run, lows = aside(requeue=True)
    run.cycle.policies = replace(
        run.policies, limits=replace(run.policies.limits, destroys_per_min=2, destroys_per_hour=6)
    )
    for low in lows:
        sim.user_cancel(low)
    goes: list[float] = []
    while len(goes) < len(lows):
        left = len(phases(run, Phase.PARKED))
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
        goes += [sim.now_s] * (left - len(phases(run, Phase.PARKED)))
    assert all(goes[i + 2] - goes[i] >= 60.0 for i in range(len(goes) - 2))
    assert all(goes[i + 6] - goes[i] >= 3600.0 for i in range(len(goes) - 6))
    assert sim.audit() == []


def test_the_caps_hold_over_a_restart_of_the_daemon() -> None:
    """Killed again and again it still destroys no more in an hour than it may."""
    sim, run, lows = aside(requeue=True)
    run.cycle.policies = run.policies = replace(
        run.policies, limits=replace(run.policies.limits, destroys_per_hour=3)
    )
    for low in lows:
        sim.user_cancel(low)
    for _ in range(8):
        run.run(60.0)
        run.kill()
        run.start()
    run.run(30.0)
    assert run.world.destroyed_lately(3600.0) == 3
    assert sum(len(host.instances) for host in sim.hosts.values()) == len(lows) - 3
    assert any("limits.destroys_per_hour = 3 is reached" in why(r) for r in run.cycle.last.refusals)


def test_slurm_is_asked_again_directly_before_a_copy_is_destroyed() -> None:
    """All readings said for long that the jobs had ended; the last word is that they have not."""
    sim, run, lows = aside(requeue=False)
    real = sim.slurm.observe, sim.slurm.observe_nodes

    def ended_all(picture: ClusterObservation) -> ClusterObservation:
        over = {
            low: replace(picture.jobs[low], state=JobState.COMPLETED, nodes=())
            for low in lows
            if low in picture.jobs
        }
        return replace(picture, jobs={**picture.jobs, **over})

    sim.slurm.observe = lambda: ended_all(real[0]())  # type: ignore[method-assign]
    sim.slurm.observe_nodes = lambda names: ended_all(real[1](names))  # type: ignore[method-assign]
    run.until(lambda: bool(phases(run, Phase.REMOVING)), 60)
    run.run(20.0)
    assert all(
        instance.state in (InstanceState.PAUSED, InstanceState.SUSPENDED)
        for host in sim.hosts.values()
        for instance in host.instances.values()
    )
    assert sum(len(host.instances) for host in sim.hosts.values()) == len(lows)
    bodies = [r.body for r in run.journal.read() if r.kind == "change"]
    assert any(b["t"] == "Unconfirmed" and "Slurm shows job" in str(b["reason"]) for b in bodies)
    sim.slurm.observe, sim.slurm.observe_nodes = real  # type: ignore[method-assign]
    run.until(lambda: ended(sim, *lows), 1500)
    assert intact(sim, lows)
    assert sim.audit() == []


def test_a_hook_alone_destroys_nothing() -> None:
    """The ladder is requeue: for a job that nobody but a hook knows, work stands still."""
    sim = cluster(cpus=2)
    ladder = Ladder((RungRule(Rung.REQUEUE),))
    run = play(sim, policies(ladder=ladder, scale=Scale(idle_s=600)))
    lows = [sim.submit("htc", 120.0) for _ in range(4)]
    run.until(lambda: running(sim, *lows), 60)
    run.until(lambda: all(map(run.world.jobs_on, sorted(run.world.managed))), 10)
    run.cycle.take([Claimed("999", ("bm1", "bm2"), sim.now_s, waiting=True)])
    run.cycle.decide()
    run.until(lambda: all(i.state is InstanceState.PAUSED for i in instances(sim)), 5)
    said = {why(r) for r in run.cycle.last.refusals if r.wanted in (Goal.REMOVAL, Goal.REQUEUE)}
    assert any("a hook says that bm1 was given to job 999" in reason for reason in said)
    run.until(lambda: ended(sim, *lows), 300)
    assert intact(sim, lows)
    assert sim.audit() == []


@pytest.mark.parametrize("per_min", [1, 6])
def test_a_ladder_of_requeue_gives_hosts_back_at_once_and_work_up_as_allowed(per_min: int) -> None:
    """The admin's order is followed, within the limits: what is above them stands still."""
    sim = cluster(cpus=2)
    limits = Limits(boots_at_once=12, destroys_per_min=per_min)
    ladder = Ladder((RungRule(Rung.REQUEUE),))
    run = play(sim, policies(ladder=ladder, scale=Scale(idle_s=600), limits=limits))
    lows = [sim.submit("htc", 300.0) for _ in range(4)]
    run.until(lambda: running(sim, *lows), 60)
    highs = [sim.submit("batch", 30.0, required_nodes=(host,)) for host in ("bm1", "bm2")]
    taken_s = sim.now_s
    run.until(lambda: running(sim, *highs), 3)
    assert all(i.state is not InstanceState.RUNNING for i in instances(sim))
    run.run(25.0)
    assert sum(sim.job(low).restarts for low in lows) == min(4, per_min)
    assert run.world.destroyed_lately(sim.now_s - taken_s) == min(4, per_min)
    run.until(lambda: ended(sim, *lows, *highs), 900)
    assert sim.audit() == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_job_that_is_not_shown_as_its_node_comes_back_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    """slurmctld hears the slurmd late, and the reading in which it does lacks the job that waits there."""
    sim = cluster(cpus=4)
    run = play(sim, policies(scale=Scale(idle_s=600), instances=replace(policies().instances, flavour=TWO)))
    lows = [sim.submit("htc", 600.0) for _ in range(jobs)]
    run.until(lambda: running(sim, *lows), 60)
    run.run(20.0)
    ((name,),) = {sim.job(low).nodes for low in lows}
    sim.submit("batch", 60.0, required_nodes=(run.world.managed[name].host,))
    run.until(lambda: name in phases(run, Phase.PARKED), 30)
    run.until(lambda: name in phases(run, Phase.RETURNING), 200)
    count = 0

    def late(look: Callable[..., ClusterObservation]) -> Callable[..., ClusterObservation]:
        def looked(*names: object) -> ClusterObservation:
            nonlocal count
            seen = look(*names)
            if name not in seen.nodes or name not in phases(run, Phase.RETURNING):
                return seen
            count += 1
            if count <= 2:
                deaf = replace(seen.nodes[name], flags=seen.nodes[name].flags | {"NOT_RESPONDING"})
                return replace(seen, nodes={**seen.nodes, name: deaf})
            if count == 3:
                return replace(seen, jobs={key: job for key, job in seen.jobs.items() if key != lows[0]})
            return seen

        return looked

    monkeypatch.setattr(sim.slurm, "observe", late(sim.slurm.observe))
    monkeypatch.setattr(sim.slurm, "observe_nodes", late(sim.slurm.observe_nodes))
    run.until(lambda: name in phases(run, Phase.READY), 60)
    assert count >= 3
    others = [sim.submit("htc", 60.0) for _ in range(8)]
    run.until(lambda: running(sim, *lows), 60)
    run.until(lambda: ended(sim, *lows, *others), 3000)
    assert intact(sim, lows)
    assert sim.audit() == []
