"""Running work is saved by itself, as often as Young and Daly say for what is pushed aside."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.changes import MemoryWritten
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.saving import Saving, daly_s
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_checkpoints import WARM
from tests.simulation.test_eviction import cluster, policies, ready, running

SAVING = Saving(automatic=True, expected_s=20_000.0, least_s=10.0, cost_s=20.0)
TWO = ("vn1", "vn2")


def saving(hosts: tuple[str, ...], rules: Saving = SAVING) -> PolicySet:
    return replace(policies(), hosts=hosts, saving=rules)


def times(sim: SimulatedWorld) -> list[float]:
    return [kept.created_s for kept in sim.provider.checkpoints()]


def test_a_long_job_is_saved_at_dalys_interval() -> None:
    """The first by the assumed cost, the next by the measured one; the job ends as ever, once."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, saving(("bm1",)), MemoryJournal())
    job = sim.submit("htc", 3000.0, time_limit_s=9000.0)
    run.until(lambda: running(run, job), 30)
    made_s = run.world.managed["vn1"].created_s
    expected = [sim.job(job).start_s]
    expected.append(expected[0] + interval_s(20.0, expected[0] - made_s))
    run.until(lambda: len(times(sim)) == 1, 2000)
    written = MemoryWritten("bm1", "vn1", sim.now_s, 256.0, 2.0, 0.0)  # as real providers tell
    run.cycle.take([written])
    expected.append(times(sim)[0] + interval_s(4.0, times(sim)[0] - made_s))
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 4000)
    late_s = [kept - due for kept, due in zip(times(sim), expected[1:], strict=False)]
    assert [late for late in late_s if not -5.0 < late < 5.0] == []
    assert len(times(sim)) >= 4
    assert sim.job(job).restarts == 0
    assert {c.expires_s - c.created_s for c in sim.provider.checkpoints()} == {SAVING.keep_s}
    assert sim.audit() == []


def interval_s(cost_s: float, lived_s: float) -> float:
    return daly_s(cost_s, SAVING.mean_to_eviction_s(lived_s, 0))


def test_evictions_make_saving_more_frequent() -> None:
    """What was pushed aside often is expected to be pushed aside soon; checkpoints do not count."""
    saved = {}
    for pushes in (0, 6):
        sim = cluster(hosts=("bm1",))
        policy = replace(saving(("bm1",)), ladder=Ladder((RungRule(Rung.PAUSE),)))
        run = Rehearsal(sim, policy, MemoryJournal())
        job = sim.submit("htc", 5000.0, time_limit_s=50_000.0)
        run.until(lambda job=job, run=run: running(run, job), 30)  # type: ignore[misc]
        for _ in range(pushes):
            high = sim.submit("batch", 5.0)
            run.until(lambda high=high, sim=sim: done(sim, high), 60)  # type: ignore[misc]
            run.until(lambda run=run: ready(run, 1), 60)  # type: ignore[misc]
        run.until(lambda sim=sim, job=job: done(sim, job), 20_000)  # type: ignore[misc]
        assert run.sim.audit() == []
        saved[pushes] = len(times(sim))
    assert saved[6] > saved[0] > 0


def done(sim: SimulatedWorld, job: str) -> bool:
    return sim.job(job).state is JobState.COMPLETED


def test_a_parallel_job_is_saved_as_a_whole_and_a_short_one_not_at_all() -> None:
    """Both parts have one id; nothing is stopped that ends by itself before it pays."""
    sim = cluster()
    rules = replace(SAVING, most_s=100.0)
    run = Rehearsal(sim, replace(saving(("bm1", "bm2"), rules), scale=WARM), MemoryJournal())
    job = sim.submit("htc", 250.0, num_nodes=2, cpus=2)
    run.until(lambda: done(sim, job), 500)
    parts = sim.provider.checkpoints()
    assert parts
    assert {c.members for c in parts} == {TWO}
    assert len(parts) == 2 * len({c.id for c in parts})
    short = sim.submit("htc", 110.0, time_limit_s=115.0)
    run.until(lambda: done(sim, short), 300)
    assert {c.job for c in sim.provider.checkpoints()} == {job}
    assert sim.audit() == []


def test_jobs_are_saved_one_after_the_other() -> None:
    """As many at the same time as the policy says, and the wait has a reason."""
    sim = cluster(hosts=("bm1",), cpus=4)
    run = Rehearsal(sim, saving(("bm1",), replace(SAVING, most_s=50.0)), MemoryJournal())
    jobs = [sim.submit("htc", 300.0) for _ in range(4)]
    told: set[str] = set()
    most = 0

    def watched() -> bool:
        nonlocal most
        most = max(most, len({m.order.id for m in run.world.managed.values() if m.order}))
        told.update(why(r) for r in run.cycle.last.refusals if r.wanted is Goal.CHECKPOINT)
        return all(done(sim, job) for job in jobs)

    run.until(watched, 2000)
    assert most == 1
    assert "saving.at_once = 1 is reached" in told
    assert {c.job for c in sim.provider.checkpoints()} == set(jobs)
    assert sim.audit() == []


def test_while_no_memory_can_be_written_only_one_is_stopped_on_each_host() -> None:
    """The file server is out: who was stopped in vain cannot come back, and nobody else is stopped there."""
    sim = cluster(hosts=("bm1", "bm2"))
    run = Rehearsal(sim, saving(("bm1", "bm2")), MemoryJournal())
    jobs = [sim.submit("htc", 20_000.0) for _ in range(4)]
    run.until(lambda: running(run, *jobs), 60)
    sim.stop_file_server()
    sim.faults.fail("suspend", UnreachableError("files", "no answer"), times=10_000)
    run.run(7200.0)
    assert [sim.job(job).state for job in jobs].count(JobState.RUNNING) == 2
    assert not any(m.order for m in run.world.managed.values())
    told = {why(r) for r in run.cycle.last.refusals if r.wanted is Goal.CHECKPOINT}
    assert told == {"saving.at_once = 1 is reached"}


def test_components_of_a_het_job_are_not_stopped_for_a_checkpoint() -> None:
    """Slurm suspends none of them, so that nothing would come of it."""
    sim = cluster(hosts=("bm1", "bm2"))
    run = Rehearsal(sim, saving(("bm1", "bm2")), MemoryJournal())
    parts = sim.submit_components("htc", 1500.0, {}, {})
    run.until(lambda: running(run, *parts), 60)
    run.until(lambda: done(sim, parts[0]), 3000)
    ordered = [r for r in run.journal.read() if r.kind == "phase" and "checkpoint" in str(r.body)]
    assert ordered == []
    assert sim.audit() == []
