"""Work is given up for a reason; when that is over before anything is destroyed, the work goes on."""

from __future__ import annotations

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.property.days import HangingJournal
from tests.simulation.policy_cluster import cluster, ended, play, policies, running
from tests.simulation.test_lost_host import dark, said_off
from tests.simulation.test_own_machines import OWN
from tests.simulation.test_reclaim import burst

LAST = Ladder((RungRule(Rung.REQUEUE),))


def full(run: Rehearsal, *, on: bool) -> None:
    assert isinstance(run.journal, MemoryJournal)
    run.journal.full = on


def at_work(sim: SimulatedWorld, run: Rehearsal) -> tuple[str, str]:
    """A job of low priority that has begun, and its node."""
    job = sim.submit("htc", 200.0)
    run.until(lambda: running(sim, job), 60)
    run.run(5.0)  # by then our daemon knows it as well
    return job, sim.job(job).nodes[0]


def goes_on(sim: SimulatedWorld, run: Rehearsal, job: str) -> None:
    """It ends in the run that it had begun."""
    run.until(lambda: ended(sim, job), 1000)
    assert (sim.job(job).state, sim.job(job).restarts) == (JobState.COMPLETED, 0)
    assert sim.audit() == []


def test_a_node_closed_while_the_disk_was_full_and_opened_again_keeps_its_work() -> None:
    """What was decided could not be written down: by the time that it can, nobody wants it any more."""
    sim = cluster()
    run = play(sim, policies(ladder=LAST))
    job, name = at_work(sim, run)
    full(run, on=True)
    run.cycle.take([ch.HoldSet(name, run.now_s, True, "a test")])
    run.until(lambda: run.world.managed[name].phase is Phase.REMOVING, 10)
    run.cycle.take([ch.HoldSet(name, run.now_s, False, "a test")])
    run.run(5.0)
    full(run, on=False)
    goes_on(sim, run, job)


def test_a_host_that_was_given_back_before_its_hypervisor_answered_keeps_its_work() -> None:
    """The call is tried again and again: each time it is looked whether it is wanted still."""
    sim = cluster()
    run = play(sim, policies(ladder=LAST))
    job, name = at_work(sim, run)
    broken = [
        sim.faults.fail(call, UnreachableError(name, "no answer"), subject=name, times=-1)
        for call in ("delete", "pause", "throttle")
    ]
    host = run.world.managed[name].host
    run.cycle.take([ch.HoldSet(host, run.now_s, True, "a test")])
    run.until(lambda: run.world.managed[name].phase is Phase.REMOVING, 10)
    run.run(100.0)
    run.cycle.take([ch.HoldSet(host, run.now_s, False, "a test")])
    for fault in broken:
        fault.end()
    goes_on(sim, run, job)


def test_slurm_is_asked_directly_before_whether_anybody_has_the_host() -> None:
    """The job that had it was cancelled a moment before: of that no reading has told yet."""
    sim = cluster()
    run = play(sim, policies(ladder=LAST))
    job, name = at_work(sim, run)
    host = run.world.managed[name].host
    for other in {"bm1", "bm2"} - {host}:
        sim.admin_drain(other, "not this one")
    broken = sim.faults.fail("delete", UnreachableError(name, "no answer"), subject=name, times=-1)
    high = sim.submit("batch", 300.0, cpus=sim.hosts[host].capacity.cpus)
    run.until(lambda: run.world.managed[name].phase is Phase.REMOVING, 20)
    run.until(lambda: not run.world.busy(name), 20)
    sim.user_cancel(high)
    broken.end()
    goes_on(sim, run, job)


def test_a_host_that_is_not_off_after_all_keeps_what_is_on_it() -> None:
    """Somebody said it of the wrong host, while nothing could be written down."""
    sim = cluster()
    run = play(sim, policies())
    job, name = at_work(sim, run)
    host = run.world.managed[name].host
    sim.cut_host(host)
    run.until(lambda: not run.world.hosts[host].reachable, 30)
    full(run, on=True)
    said_off(run, host)
    run.run(5.0)
    sim.join_host(host)
    run.cycle.take([ch.HoldSet(host, run.now_s, False, "the wrong one", off=True)])
    run.run(5.0)
    full(run, on=False)
    goes_on(sim, run, job)


@pytest.mark.parametrize("late", [False, True])
def test_room_that_is_not_wanted_back_any_more_is_kept(late: bool) -> None:
    """The order is undone before its time is over, or (late) while the calls after that fail."""
    sim, given = burst(Scale(idle_s=60, reclaim_within_s=30))
    run = Rehearsal(sim, given, HangingJournal())
    jobs = [at_work(sim, run) for _ in range(2)]
    broken = sim.faults.fail("delete", UnreachableError("east", "no answer"), times=-1)
    run.cycle.take([ch.HoldSet("east", run.now_s, True, "mine", keep=0)])
    run.until(lambda: all(m.phase is Phase.DRAINING for m in run.world.managed.values()), 20)
    if late:
        run.until(lambda: all(m.phase is Phase.REMOVING for m in run.world.managed.values()), 60)
        run.until(lambda: not any(map(run.world.busy, run.world.managed)), 60)
    run.cycle.take([ch.HoldSet("east", run.now_s, False, "yours", keep=0)])
    broken.end()
    for job, _ in jobs:
        goes_on(sim, run, job)


def test_of_two_that_were_to_go_one_stays_when_there_is_room_for_one() -> None:
    """As many go as are too many, however the number came about."""
    sim, given = burst(Scale(idle_s=60, reclaim_within_s=30))
    run = Rehearsal(sim, given, HangingJournal())
    jobs = [at_work(sim, run)[0] for _ in range(2)]
    run.cycle.take([ch.HoldSet("east", run.now_s, True, "mine", keep=0)])
    run.until(lambda: all(m.phase is Phase.DRAINING for m in run.world.managed.values()), 20)
    run.cycle.take([ch.HoldSet("east", run.now_s, True, "one is yours", keep=1)])
    run.until(lambda: all(ended(sim, job) for job in jobs), 1000)
    assert sorted(sim.job(job).restarts for job in jobs) == [0, 1]
    assert sim.audit() == []


def test_a_job_s_own_machine_is_not_lost_for_a_word_about_its_fellow_s_host() -> None:
    """A hook speaks for a job that nobody knows: both machines stand still for a moment, no more."""
    sim = cluster(2)
    run = play(sim, policies(ladder=LAST, own_machines=OWN))
    job = sim.submit("htc", 200.0, cpus=2, num_nodes=2, comment="backfill-vm:cpus=2")
    run.until(lambda: running(sim, job), 60)
    hosts = {run.world.managed[name].host for name in sim.job(job).nodes}
    run.run(10.0)
    run.cycle.take([ch.Claimed("999991", (min(hosts),), run.now_s, waiting=True)])
    goes_on(sim, run, job)


def test_a_job_s_own_machines_start_anew_once_when_the_host_of_one_is_really_taken() -> None:
    """The one whose host it is goes; the other one stands still, and is stale by then."""
    sim = cluster(2)
    run = play(sim, policies(ladder=LAST, own_machines=OWN))
    job = sim.submit("htc", 100.0, cpus=2, num_nodes=2, comment="backfill-vm:cpus=2")
    run.until(lambda: running(sim, job), 60)
    run.run(10.0)
    high = [sim.submit("batch", 50.0, cpus=2) for _ in range(2)]
    run.until(lambda: ended(sim, job) and all(ended(sim, one) for one in high), 2000)
    assert sim.job(job).restarts == 1
    assert sim.audit() == []


def test_a_dark_host_that_is_said_to_be_off_still_gives_its_job_back() -> None:
    """The word that nobody takes back counts."""
    sim = cluster()
    run = play(sim, policies())
    job, _ = at_work(sim, run)
    said_off(run, dark(run, job))
    run.until(lambda: sim.job(job).restarts == 1, 60)
    run.until(lambda: ended(sim, job), 500)
    assert sim.audit() == []
