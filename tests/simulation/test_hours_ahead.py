"""What is known of the hours ahead, and the time a host has been free, decide where work goes."""

from __future__ import annotations

import pytest

from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.gaps import Gaps
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.drivers.simulated.world import SimulatedWorld
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, running, taken_once


def test_nothing_is_made_where_slurm_will_want_the_host_soon() -> None:
    """The planned host is passed over for the other one; without a plan it would be used."""
    sim = cluster()
    sim.slurm.announce("bm1", planned_s=sim.now_s + 300.0)
    run = play(sim, policies(gaps=Gaps(boot_pays_s=600.0)))
    jobs = [sim.submit("htc", 60.0) for _ in range(5)]
    run.run(60)
    assert {m.host for m in run.world.managed.values()} == {"bm2"}
    assert any("is not worth it" in why(r) for r in run.cycle.last.refusals)
    run.until(lambda: ended(sim, *jobs), 600)


def test_a_host_is_clear_when_its_maintenance_begins() -> None:
    """Two minutes before, the instances leave; afterwards their jobs go on where they were."""
    sim = cluster()
    begin_s = sim.now_s + 300.0
    sim.slurm.announce("bm1", maintenance_s=begin_s)
    run = play(sim, policies(gaps=Gaps(boot_pays_s=0.0, clear_before_s=120.0)))
    jobs = [sim.submit("htc", 400.0) for _ in range(8)]
    run.until(lambda: running(sim, *jobs), 100)
    assert run.world.fleet.instances_on("bm1")
    run.run(begin_s - 119.0 - sim.now_s)
    assert [i.name for i in run.world.fleet.instances_on("bm1") if i.occupies_cpu] == []
    run.run(400)
    assert [i.name for i in run.world.fleet.instances_on("bm1") if i.occupies_cpu] == []
    sim.slurm.announce("bm1")
    run.until(lambda: ended(sim, *jobs), 900)
    assert {sim.job(j).restarts for j in jobs} == {0}
    assert sim.audit() == []


@pytest.mark.parametrize(("settle_s", "least", "most"), [(0.0, 0.0, 5.0), (60.0, 60.0, 70.0)])
def test_a_host_settles_before_work_returns(settle_s: float, least: float, most: float) -> None:
    """The host must have been free for `settle_s`; 0 brings work back at once."""
    sim = cluster()
    run = play(sim, policies(comeback=Comeback(settle_s=settle_s)))
    low = taken_once(run, sim)
    begin_s = sim.now_s
    run.until(lambda: running(sim, low), 200)
    assert least <= sim.now_s - begin_s <= most
    assert sim.audit() == []


def test_who_waits_for_a_host_to_settle_is_not_asked_again() -> None:
    """The host looks the same all the time, so nothing but the time makes a difference."""
    sim = cluster()
    run = play(sim, policies(comeback=Comeback(settle_s=60.0)))
    low = taken_once(run, sim)
    run.run(20.0)
    assert len(run.world.queue) == 0
    run.until(lambda: running(sim, low), 60)


def test_work_does_not_return_for_a_moment() -> None:
    """Slurm plans the host's next job in 30 s: a return would not pay, so it waits that out."""
    sim = cluster()
    run = play(sim, policies(gaps=Gaps(return_pays_s=120.0)))
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    host = next(iter(run.world.managed.values())).host
    high = sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: running(sim, high), 10)
    sim.slurm.announce(host, planned_s=sim.now_s + 60.0)
    run.run(50)
    assert ended(sim, high)
    assert phases(run, Phase.PARKED)
    assert any("is not worth it" in why(r) for r in run.cycle.last.refusals)
    sim.slurm.announce(host)
    run.until(lambda: ended(sim, low), 300)
    assert sim.audit() == []


def test_a_rung_is_left_at_once_when_the_host_stays_busy() -> None:
    """Looking ahead, the pause of a minute is skipped for a job of an hour, and kept otherwise."""
    rungs = (RungRule(Rung.PAUSE, 1.0, 60.0), RungRule(Rung.SUSPEND, 60.0, 7200.0))
    for foresee, suspended_after in ((True, 20.0), (False, 65.0)):
        sim = cluster()
        run = play(sim, policies(ladder=Ladder(rungs), gaps=Gaps(foresee=foresee)))
        low = sim.submit("htc", 300.0)
        run.until(lambda sim=sim, low=low: running(sim, low), 60)  # type: ignore[misc]
        host = next(iter(run.world.managed.values())).host
        sim.submit("batch", 300.0, required_nodes=(host,), time_limit_s=3600.0)
        begin_s = sim.now_s
        run.until(
            lambda run=run: any(i.state.value == "suspended" for i in run.world.instances.values()),  # type: ignore[misc]
            200,
        )
        assert abs(sim.now_s - begin_s - suspended_after) < 20


def test_two_instances_never_move_into_the_room_of_one() -> None:
    """Pushed aside at the same moment, they choose their new hosts one after the other."""
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    hosts = ("bm1", "bm2", "bm3", "bm4")
    for host in hosts:
        sim.add_host(host, cpus=1, features=("metal",))
    ladder = Ladder((RungRule(Rung.PAUSE, 1.0, 600.0), RungRule(Rung.MIGRATE, 60.0)))
    limits = Limits(max_instances=2, max_per_host=1)
    run = play(sim, policies(hosts=hosts, ladder=ladder, limits=limits))
    low = [sim.submit("htc", 200.0) for _ in range(2)]
    run.until(lambda: running(sim, *low), 60)
    taken = sorted(m.host for m in run.world.managed.values())
    sim.submit("batch", 100.0, num_nodes=2, cpus=2, required_nodes=tuple(taken))
    run.run(30)
    assert {m.host for m in run.world.managed.values()} == {*hosts} - {*taken}
    run.until(lambda: ended(sim, *low), 600)
    assert sim.audit() == []
