"""Checkpoints of jobs in simulated time: all instances of one moment, and the jobs go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why as why_not
from backfill.core.policies.checkpoints import Checkpoints
from backfill.core.policies.disk_queue import DiskQueue
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.checkpoint_order import CommandError, checkpoint_order, put_back_order
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death
from tests.simulation.test_eviction import cluster, policies, ready, running

# No instance is made for a job that needs several nodes; it gets those that are there.
WARM = Scale(warm=2, idle_s=1000.0)


def seen_running(run: Rehearsal, job: str) -> bool:
    known = run.world.jobs.get(job)
    ready_on = [run.world.managed.get(n) for n in known.nodes] if known is not None else []
    phases = [node is None or node.phase is Phase.READY for node in ready_on]
    return known is not None and known.state is JobState.RUNNING and all(phases)


def on_two_nodes(**rules: object) -> tuple[Rehearsal, str]:
    """A job that runs on two instances."""
    policy = replace(policies(), scale=WARM, **rules)  # type: ignore[arg-type]  # its own fields
    run = Rehearsal(cluster(), policy, MemoryJournal())
    job = run.sim.submit("htc", 60.0, num_nodes=2, cpus=2)
    run.until(lambda: running(run, job), 30)
    return run, job


def on_one_host(run_s: float, **rules: object) -> tuple[Rehearsal, str]:
    """A job that runs on the only host's first instance."""
    policy = replace(policies(), hosts=("bm1",), **rules)  # type: ignore[arg-type]  # likewise
    run = Rehearsal(cluster(hosts=("bm1",)), policy, MemoryJournal())
    job = run.sim.submit("htc", run_s)
    run.until(lambda: running(run, job), 30)
    return run, job


def order(run: Rehearsal, job: str) -> str:
    run.until(lambda: seen_running(run, job), 10)
    identity, nodes = checkpoint_order(run.world, job)
    run.cycle.take([ch.NodeManaged(node) for node in nodes])
    return identity


def test_a_parallel_job_is_kept_as_of_one_moment_and_goes_on() -> None:
    """Both instances stand still before either is saved; afterwards the job ends as ever."""
    run, job = on_two_nodes()
    sim = run.sim
    identity = order(run, job)
    run.until(lambda: len(sim.provider.checkpoints()) == 2, 30)
    assert sim.job(job).state is JobState.SUSPENDED
    sim.provider.verify(identity)
    assert {c.members for c in sim.provider.checkpoints()} == {("vn1", "vn2")}
    run.until(lambda: seen_running(run, job), 30)
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 100)
    assert sim.job(job).restarts == 0
    assert sim.audit() == []


def seen_before_it_is_back(run: Rehearsal, call: str) -> list[str]:
    """The steps from now on; each such call's effect is read, and decided on, before it is back."""
    steps: list[str] = []

    def look(what: str) -> bool:
        steps.append(what)
        if what.startswith(f"effect {call}:"):
            run._read_all()
            run._decide()
            steps.append(f"back {call}")
        return False

    run.on_step = look
    return steps


def test_what_is_seen_on_disk_is_kept_when_the_call_that_wrote_it_is_back() -> None:
    """Until then the driver lets nobody else at the instance: the order would come to nothing."""
    run, job = on_one_host(60.0)
    steps = seen_before_it_is_back(run, "SuspendInstance")
    identity = order(run, job)
    run.until(lambda: len(run.sim.provider.checkpoints()) == 1, 30)
    assert steps.index("back SuspendInstance") < steps.index(f"intent KeepCheckpoint:vn1:1:{identity}")
    run.until(lambda: seen_running(run, job), 30)
    steps.clear()
    put_back(run, job, identity)
    run.until(lambda: any(step.startswith("effect PutBackCheckpoint") for step in steps), 30)
    assert steps.index("back SuspendInstance") < steps.index(f"intent PutBackCheckpoint:vn1:1:{identity}")
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 100)
    assert run.sim.audit() == []


def test_instances_that_do_not_stop_together_are_not_kept() -> None:
    """The one that could be stopped goes back to work; nothing half is kept."""
    run, job = on_two_nodes(checkpoints=Checkpoints(window_s=2.0))
    sim = run.sim
    sim.faults.fail("pause", UnreachableError("vn2", "silence"), subject="vn2", times=4)
    order(run, job)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 30)
    run.until(lambda: seen_running(run, job), 60)
    assert sim.provider.checkpoints() == ()
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 200)
    assert sim.audit() == []


def test_memory_that_cannot_be_written_costs_the_checkpoint_and_not_the_job() -> None:
    """It does not stand still on a host of its own for as long as a file server is out."""
    run, job = on_two_nodes()
    sim = run.sim
    sim.faults.fail("suspend", UnreachableError("files", "no answer"), times=1000)
    order(run, job)
    run.until(lambda: sim.job(job).state is JobState.SUSPENDED, 20)
    run.until(lambda: seen_running(run, job), 60)
    assert not any(m.order for m in run.world.managed.values())
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 200)
    assert sim.provider.checkpoints() == ()
    assert sim.audit() == []


def test_a_full_quota_costs_the_checkpoint_and_not_the_job() -> None:
    """The reason is in the story, and the job goes on."""
    run, job = on_one_host(60.0, checkpoints=Checkpoints(quota_mb=10))
    sim = run.sim
    order(run, job)
    run.until(lambda: run.world.managed["vn1"].phase is not Phase.READY, 10)
    run.until(lambda: ready(run, 1), 30)
    assert sim.provider.checkpoints() == ()
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 100)


def test_only_a_running_job_on_our_nodes_can_be_kept() -> None:
    """One sentence says what stands in the way, and nothing is stopped."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    with pytest.raises(CommandError, match="unknown to Slurm"):
        checkpoint_order(run.world, "99")
    metal = sim.submit("batch", 30.0)
    run.until(lambda: seen_running(run, metal), 10)
    with pytest.raises(CommandError, match="no node of ours"):
        checkpoint_order(run.world, metal)


def shared(run_s: float = 100.0) -> tuple[Rehearsal, str]:
    """A job that runs alone on an instance with room for another one."""
    wide = replace(policies().instances, flavour=Flavour(cpus=2, memory_mb=256))
    return on_one_host(run_s, instances=wide)


def kept_alone(run: Rehearsal, job: str) -> str:
    """A checkpoint of the job, which works again."""
    identity = order(run, job)
    run.until(lambda: len(run.sim.provider.checkpoints()) == 1, 30)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 30)
    run.until(lambda: seen_running(run, job), 30)
    return identity


def test_a_node_with_another_job_is_neither_kept_nor_put_back() -> None:
    """The other one's state would go back, too."""
    run, job = shared()
    identity = kept_alone(run, job)
    other = run.sim.submit("htc", 20.0)
    run.until(lambda: seen_running(run, other), 30)
    for one, its in ((job, other), (other, job)):
        with pytest.raises(
            CommandError, match=f"vn1 has job {its}, too, whose state would go back with that"
        ):
            checkpoint_order(run.world, one)
    with pytest.raises(CommandError, match=f"vn1 has job {other}, too"):
        put_back_order(run.world, identity, job, 0, {"vn1": 1})
    run.until(lambda: run.sim.job(other).state is JobState.COMPLETED, 60)
    put_back(run, job, identity)
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 200)
    assert run.sim.audit() == []


@pytest.mark.parametrize("restore", [False, True])
def test_where_another_job_begins_before_the_node_is_closed_nothing_is_kept_or_put_back(
    restore: bool,
) -> None:
    """The order was for one alone; both go on as they were."""
    run, job = shared()
    if restore:
        nodes = put_back_order(run.world, kept_alone(run, job), job, 0, {"vn1": 1})
    else:
        run.until(lambda: seen_running(run, job), 10)
        _, nodes = checkpoint_order(run.world, job)
    other = run.sim.submit("htc", 20.0)
    run.until(lambda: running(run, other), 20)
    before = len(list(run.journal.read()))
    run.cycle.take([ch.NodeManaged(node) for node in nodes])
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 60)
    records = list(run.journal.read())[before:]
    done = {record.body["t"] for record in records if record.kind == "intent"}
    assert "SuspendJob" in done
    assert not done & {"KeepCheckpoint", "PutBackCheckpoint"}
    assert any(f"jobs {job}, {other} are on vn1 together" in str(record.body) for record in records)
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 200)
    assert [run.sim.job(one).restarts for one in (job, other)] == [0, 0]
    assert run.sim.audit() == []


def test_a_component_of_a_het_job_is_refused_before_anything_stops() -> None:
    """Slurm would not suspend it, and there is no place for a checkpoint of it."""
    run, job = on_one_host(60.0)
    run.until(lambda: seen_running(run, job), 10)
    component = replace(run.world.jobs[job], id=f"{job}+0")
    run.world.apply(ch.JobSeen(component, run.now_s))
    with pytest.raises(CommandError, match="is a component of a heterogeneous job"):
        checkpoint_order(run.world, component.id)


def test_suspends_take_turns_at_the_disk() -> None:
    """Four instances of one host are written one after the other, and the wait has a reason."""
    sim = cluster(hosts=("bm1",), cpus=4)
    ladder = Ladder((RungRule(Rung.SUSPEND, within_s=60.0),))
    policy = replace(policies(ladder), hosts=("bm1",), disk_queue=DiskQueue(host_mb=300))
    run = Rehearsal(sim, policy, MemoryJournal())
    jobs = [sim.submit("htc", 500.0) for _ in range(4)]
    run.until(lambda: running(run, *jobs), 60)
    sim.submit("batch", 30.0, cpus=4)
    seen: set[int] = set()
    told: set[str] = set()

    def all_saved() -> bool:
        writing = [
            o for o in run.world.operations.values() if o.running and o.key.startswith("SuspendInstance")
        ]
        seen.add(len(writing))
        told.update(why_not(r) for r in run.cycle.last.refusals if r.wanted is Goal.SUSPEND)
        names = [f"vn{i}" for i in range(1, 5)]
        return all(sim.instance(n).state is InstanceState.SUSPENDED for n in names)

    run.until(all_saved, 60)
    assert max(seen) <= 1
    assert any("disk_queue.host_mb = 300 MB would be exceeded" in reason for reason in told)


def put_back(run: Rehearsal, job: str, identity: str) -> None:
    run.until(lambda: seen_running(run, job), 10)
    parts = {c.name: c.generation for c in run.sim.provider.checkpoints() if c.id == identity}
    nodes = put_back_order(run.world, identity, job, 0, parts)
    run.cycle.take([ch.NodeManaged(node) for node in nodes])


def test_a_parallel_job_goes_on_from_its_checkpoint_on_all_nodes() -> None:
    """No instance goes on before all are replaced; the job ends as ever, once."""
    run, job = on_two_nodes()
    sim = run.sim
    identity = order(run, job)
    run.until(lambda: len(sim.provider.checkpoints()) == 2, 30)
    run.until(lambda: seen_running(run, job), 30)
    replaced: list[tuple[str, bool]] = []
    original = sim.provider.put_back

    def watched(host: str, name: str, identity: str) -> None:
        at_rest = [sim.instance(n).state is InstanceState.SUSPENDED for n in ("vn1", "vn2")]
        replaced.append((name, all(at_rest)))
        original(host, name, identity)

    sim.provider.put_back = watched  # type: ignore[method-assign]
    put_back(run, job, identity)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.EVICTING, 30)
    assert run.world.managed["vn1"].reason == f"checkpoint {identity} was ordered back"
    run.until(lambda: len(replaced) == 2, 30)
    run.until(lambda: seen_running(run, job), 30)
    assert sorted(replaced) == [("vn1", True), ("vn2", True)]
    assert not any(m.order for m in run.world.managed.values())
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 100)
    assert sim.job(job).restarts == 0
    assert sim.audit() == []


def test_a_damaged_checkpoint_is_not_put_back_and_the_job_goes_on() -> None:
    """The old state is given up by none of the instances."""
    run, job = on_two_nodes()
    sim = run.sim
    identity = order(run, job)
    run.until(lambda: len(sim.provider.checkpoints()) == 2, 30)
    sim.provider.damaged.add(identity)
    put_back(run, job, identity)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 90)
    run.until(lambda: seen_running(run, job), 30)
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 100)
    assert sim.job(job).restarts == 0
    assert sim.audit() == []


def test_a_job_that_is_another_one_by_now_is_not_put_back() -> None:
    """A restart since the checkpoint, other nodes, or another generation: one sentence each."""
    run, job = on_one_host(60.0)
    run.until(lambda: seen_running(run, job), 30)
    for restarts, parts, why in (
        (1, {"vn1": 1}, "restarted since"),
        (0, {"vn2": 1}, "not where it was kept"),
        (0, {"vn1": 2}, "not the instance that was kept"),
    ):
        with pytest.raises(CommandError, match=why):
            put_back_order(run.world, "x", job, restarts, parts)


def test_a_daemon_killed_after_any_step_of_a_checkpoint_loses_nothing() -> None:
    """The order is in the journal: it is carried out by the next daemon, or given up; once."""
    number = 1
    while _killed_after(number):
        number += 1
    assert number > 20


def _killed_after(number: int) -> bool:
    """One checkpoint of a job, the daemon killed after one step; return True if there was such a step."""
    run, job = on_one_host(12.0)
    sim = run.sim
    order(run, job)
    death = Death(run, number, down_s=0.0)
    run.until(lambda: bool(sim.provider.checkpoints()) and ready(run, 1), 60)
    run.on_step = None
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 60)
    assert sim.job(job).restarts == 0
    assert len(sim.provider.checkpoints()) == 1
    assert sim.audit() == []
    return death.at_s is not None
