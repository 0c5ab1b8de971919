"""Devices and the ladder, in simulated time: to disk and back, and what a paused guest cannot."""

from __future__ import annotations

from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError
from tests.simulation.device_cluster import RULES, functions, held, plugged
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running

ON_DISK = Ladder((RungRule(Rung.SUSPEND, within_s=60.0), RungRule(Rung.REQUEUE)))


def saved(sim: SimulatedWorld, job: str) -> bool:
    """Whether the instance of the job is on disk."""
    (name,) = sim.job(job).nodes
    return sim.instance(name).state is InstanceState.SUSPENDED


def test_an_instance_with_a_device_goes_to_disk_and_gets_it_again() -> None:
    """Guest told, unplugged, saved; restored, plugged, told: and only then its job goes on."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    run = play(sim, policies(devices=RULES, ladder=ON_DISK))
    job = sim.submit("htc", 120.0, features="vf")
    run.until(lambda: running(sim, job), 100)
    mine = held(sim)[job]
    taker = sim.submit("batch", 60.0, required_nodes=(mine.host,))
    run.until(lambda: saved(sim, job), 60)
    assert held(sim)[job].functions == mine.functions  # it keeps its right to it
    assert not plugged(sim, job)
    run.until(lambda: ended(sim, taker), 200)
    run.until(lambda: running(sim, job), 60)
    assert plugged(sim, job)
    assert [when for _, _, when in sim.provider.hooks] == ["before-move", "after-move"]
    assert sim.job(job).restarts == 0
    run.until(lambda: ended(sim, job) and not held(sim), 400)
    assert {violation.kind for violation in sim.audit()} <= {"room"}


def test_a_guest_that_does_not_let_go_has_its_device_and_the_next_rung_is_taken() -> None:
    """It is told that all is as before; its memory is not written, so its job starts over."""
    sim = one_host()
    functions(sim, "bm1")
    sim.faults.fail("unplug", UnreachableError("vn1", "it does not let go"), times=-1)
    run = play(sim, policies(hosts=("bm1",), devices=RULES, ladder=ON_DISK))
    job = sim.submit("htc", 120.0, features="vf")
    run.until(lambda: running(sim, job), 100)
    sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: len(sim.provider.hooks) == 2, 60)
    assert [when for _, _, when in sim.provider.hooks] == ["before-move", "after-move"]
    assert plugged(sim, job)
    run.until(lambda: sim.job(job).restarts == 1, 60)
    sim.faults.clear()
    run.until(lambda: ended(sim, job) and not held(sim), 600)


def test_what_was_paused_with_a_device_takes_the_next_rung_that_it_can_take() -> None:
    """Neither written nor moved while it stands still, and nobody tries: its job starts over."""
    sim = cluster()
    functions(sim, "bm1", "bm2", each=2)
    rungs = (RungRule(Rung.PAUSE, within_s=1.0, for_s=20.0), RungRule(Rung.SUSPEND), RungRule(Rung.MIGRATE))
    run = play(sim, policies(devices=RULES, ladder=Ladder((*rungs, RungRule(Rung.REQUEUE)))))
    job = sim.submit("htc", 120.0, features="vf")
    run.until(lambda: running(sim, job), 100)
    (name,) = sim.job(job).nodes
    sim.submit("batch", 300.0, required_nodes=(held(sim)[job].host,))
    said: set[str] = set()

    def gone() -> bool:
        said.update(why(r) for r in run.cycle.last.refusals if r.subject == name)
        assert not phases(run, Phase.MOVING)
        assert plugged(sim, job) or sim.job(job).restarts
        return sim.job(job).restarts == 1

    run.until(gone, 30)
    assert f"a guest that stands still cannot let go of the devices of job {job}" in said
    run.until(lambda: ended(sim, job) and not held(sim), 600)


def killed_after(fatal: int) -> bool:
    """The way to disk and back with a daemon that dies after so many steps; whether it did."""
    sim = one_host()
    functions(sim, "bm1")
    run = play(sim, policies(hosts=("bm1",), devices=RULES, ladder=ON_DISK))
    job = sim.submit("htc", 40.0, features="vf")
    run.until(lambda: running(sim, job), 100)
    sim.submit("batch", 30.0, required_nodes=("bm1",))
    last = run.steps + fatal
    run.on_step = lambda _what: run.steps == last
    run.until(lambda: not run.alive or ended(sim, job), 400)
    died = not run.alive
    if died:
        sim.step_to(sim.now_s + 3.0)
        run.start()
    run.until(lambda: ended(sim, job) and not held(sim), 400)
    assert sim.job(job).restarts == 0, fatal
    assert {violation.kind for violation in sim.audit()} <= {"room"}, fatal
    return died


def test_a_daemon_that_dies_at_any_step_of_it_loses_neither_job_nor_device() -> None:
    """Killed after each step of the way to disk and back, it goes on as if nothing had been."""
    fatal = 1
    while killed_after(fatal):
        fatal += 1
    assert fatal > 20
