"""A return that is late or refused: the instance stands still again, and nothing is lost."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.readiness import Fact
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running

STALE = (Fact("files:/home", False, "stale file handle"),)
# Default rungs but for the times: to start over is the admin's order after half a minute.
IMPATIENT = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=30.0), RungRule(Rung.REQUEUE)))


def aside(
    ladder: Ladder, *, requeue: bool, for_s: float = 20.0
) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Four jobs stand still on two hosts, each in an instance of its own."""
    sim = cluster(cpus=2)
    rules = policies(ladder=ladder, scale=Scale(idle_s=600), limits=Limits(boots_at_once=12))
    run = play(sim, rules)
    lows = [sim.submit("htc", 300.0, requeue=requeue) for _ in range(4)]
    run.until(lambda: running(sim, *lows), 60)
    for host in ("bm1", "bm2"):
        sim.submit("batch", for_s, required_nodes=(host,))
    run.until(lambda: len(phases(run, Phase.PARKED)) == 4, 30)
    return sim, run, lows


def untouched(sim: SimulatedWorld, lows: list[str]) -> bool:
    """Whether no job has lost anything."""
    seen = [sim.job(low) for low in lows]
    return all(j.restarts == 0 and j.state is not JobState.CANCELLED for j in seen)


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("ladder", [Ladder(), IMPATIENT], ids=["default", "impatient"])
@pytest.mark.parametrize("out_s", [75.0, 200.0])
def test_file_systems_that_are_out_cost_nobody_his_work(ladder: Ladder, requeue: bool, out_s: float) -> None:
    """All guests come back while the file server is down: they stand still until it is back."""
    sim, run, lows = aside(ladder, requeue=requeue)
    for name in sorted(run.world.managed):
        sim.provider.ailments[name] = STALE
    run.until(lambda: len(phases(run, Phase.RETURNING)) == 4, 60)
    began_s, said = sim.now_s, set()
    while sim.now_s < began_s + out_s:
        run.run(5.0)
        assert untouched(sim, lows)
        assert not phases(run, Phase.REMOVING)
        said |= {why(r) for r in run.cycle.last.refusals if r.wanted is Goal.RETURN_TO}
    assert any("its return failed" in why and "stale file handle" in why for why in said)
    sim.provider.ailments.clear()
    run.until(lambda: ended(sim, *lows), 1500)
    assert untouched(sim, lows)
    assert sim.audit() == []


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("thaw", BusyError("vn", "cannot acquire state change lock")),
        ("thaw", RefusedError("vn", "its disk cannot be opened")),
        ("wake", UnreachableError("vn", "its guest agent did not answer")),
        ("wake", RefusedError("vn", "it has no guest agent")),
    ],
    ids=["thaw busy", "thaw refused", "agent silent", "agent refused"],
)
@pytest.mark.parametrize("requeue", [True, False])
def test_a_host_that_refuses_to_let_them_go_on_costs_nobody_his_work(
    call: str, error: DriverError, requeue: bool
) -> None:
    """For three and a half minutes, which is longer than a return may take."""
    sim, run, lows = aside(Ladder(), requeue=requeue)
    sim.faults.fail(call, error, times=-1)
    run.run(240.0)
    assert untouched(sim, lows)
    assert phases(run, Phase.REMOVING) == set()
    assert all(m.retry.returns >= 1 for m in run.world.managed.values())
    sim.faults.clear()
    run.until(lambda: ended(sim, *lows), 1500)
    assert untouched(sim, lows)
    assert {m.retry.returns for m in run.world.managed.values()} <= {0}
    assert sim.audit() == []


def test_memory_that_cannot_be_read_back_is_kept() -> None:
    """Refused for good, as where a file server does not show it: it may be there again later."""
    on_disk = Ladder((RungRule(Rung.SUSPEND, within_s=60.0),))
    sim, run, lows = aside(on_disk, requeue=False)
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 60)
    sim.faults.fail("restore", RefusedError("vn", "cannot open the saved memory"), times=-1)
    run.run(600.0)
    assert untouched(sim, lows)
    sim.faults.clear()
    run.until(lambda: ended(sim, *lows), 1500)
    assert untouched(sim, lows)
    assert sim.audit() == []


def test_tries_get_rarer_and_the_count_begins_anew_when_one_succeeds() -> None:
    """15 s after the first that came to nothing, then twice as long each time, up to a limit."""
    sim, run, _ = aside(Ladder(), requeue=True)
    rules = replace(run.policies.comeback, within_s=10.0, retry_s=15.0, retry_at_most_s=50.0)
    run.cycle.policies = replace(run.policies, comeback=rules)
    sim.faults.fail("thaw", BusyError("vn", "cannot acquire state change lock"), times=-1)
    waits: list[float] = []
    while len(waits) < 4:
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
        node = run.world.managed["vn1"]
        if node.retry.returns > len(waits):
            assert node.retry.not_before_s is not None
            waits.append(node.retry.not_before_s - node.since_s)
    assert waits == [15.0, 30.0, 50.0, 50.0]
    sim.faults.clear()
    run.until(lambda: run.world.managed["vn1"].phase is Phase.READY, 120)
    assert run.world.managed["vn1"].retry.returns == 0


def test_a_host_that_is_wanted_during_a_late_return_is_given_back() -> None:
    """The guest runs again and its proof fails: who is given the host finds it free."""
    sim, run, lows = aside(Ladder(), requeue=False)
    for name in sorted(run.world.managed):
        sim.provider.ailments[name] = STALE
    run.until(lambda: len(phases(run, Phase.RETURNING)) == 4, 60)
    run.until(lambda: sim.instance("vn1").state is InstanceState.RUNNING, 10)
    highs = [sim.submit("batch", 30.0, required_nodes=(host,)) for host in ("bm1", "bm2")]
    run.until(lambda: ended(sim, *highs), 60)
    sim.provider.ailments.clear()
    run.until(lambda: ended(sim, *lows), 1500)
    assert untouched(sim, lows)
    assert sim.audit() == []


@pytest.mark.parametrize("requeue", [True, False])
def test_what_cannot_be_stopped_is_not_destroyed_for_it(requeue: bool) -> None:
    """The list of rungs is over and names no requeue: its pause is tried until it works."""
    sim = cluster()
    only = Ladder((RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.SUSPEND, within_s=5.0)))
    run = play(sim, policies(ladder=only, scale=Scale(idle_s=600)))
    low = sim.submit("htc", 300.0, requeue=requeue)
    run.until(lambda: running(sim, low), 60)
    host = run.world.managed["vn1"].host
    for call in ("pause", "suspend"):
        sim.faults.fail(call, RefusedError("vn1", "the monitor does not answer"), times=-1)
    sim.submit("batch", 60.0, required_nodes=(host,))
    run.run(40.0)
    assert run.world.managed["vn1"].phase is Phase.EVICTING
    assert any(
        "no rung of the ladder has stopped it" in why(r) and "monitor" in why(r)
        for r in run.cycle.last.refusals
    )
    sim.faults.clear()
    run.until(lambda: ended(sim, low), 900)
    assert sim.job(low).restarts == 0


def test_who_goes_on_while_its_return_is_late_is_released_in_the_end() -> None:
    """Somebody resumed the job in Slurm: its node is asked on and on, and taken back to work."""
    sim, run, lows = aside(Ladder(), requeue=False)
    sim.stop_file_server()
    run.until(lambda: len(phases(run, Phase.RETURNING)) == 4, 60)
    run.run(3.0)
    for low in lows:
        sim.slurm.resume_job(low)
    run.run(200.0)
    said = {why(r) for r in run.cycle.last.refusals}
    assert any("its jobs are running again" in why for why in said)
    sim.start_file_server()
    run.until(lambda: len(phases(run, Phase.READY)) == 4, 60)
    run.until(lambda: ended(sim, *lows), 1500)
    assert untouched(sim, lows)
    assert sim.audit() == []


def test_an_instance_whose_jobs_end_during_a_late_return_is_not_kept_for_them() -> None:
    """Its proof fails on and on, and nobody needs it any more."""
    sim, run, lows = aside(Ladder(), requeue=False)
    for name in sorted(run.world.managed):
        sim.provider.ailments[name] = STALE
    run.until(lambda: len(phases(run, Phase.RETURNING)) == 4, 60)
    run.until(lambda: sim.instance("vn1").state is InstanceState.RUNNING, 10)
    for low in lows:
        sim.user_cancel(low)
    run.until(lambda: not run.world.managed, 900)
    assert sim.audit() == []


def test_a_slurmd_whose_report_got_lost_is_asked_for_another() -> None:
    """Slurm would hear it at its next ping only, which may be far away; it need not wait for that."""
    sim, run, lows = aside(Ladder(), requeue=True, for_s=60.0)
    run.until(lambda: len(run.world.silent) == 4, 50)
    sim.manners.ping_s = math.inf
    lost: list[object] = []
    heard = sim.provider.woken
    sim.provider.woken = lost.append
    run.until(lambda: len(phases(run, Phase.RETURNING)) == 4, 60)
    run.run(100.0)
    assert len(phases(run, Phase.RETURNING)) == 4
    assert 12 <= len(lost) <= 28  # again and again, and not all the time
    sim.provider.woken = heard
    run.until(lambda: ended(sim, *lows), 700)
    assert untouched(sim, lows)
    assert sim.audit() == []
