"""A fact that could not be read is unknown, never "no": what cannot be told is kept and told of."""

from __future__ import annotations

from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import ended, one_host, play, policies, running

BY_SUSPEND = Ladder((RungRule(Rung.SUSPEND, within_s=60.0), RungRule(Rung.REQUEUE)))
WHY = "cannot use /srv/backfill/c/vn1/memory.save: Permission denied; let uid 990 into it"
HOUR_S = 3600.0


def suspended() -> tuple[Rehearsal, str, str, str]:
    """A low job on disk, and the high job that has its host: (run, low, high, node)."""
    sim = one_host()
    run = play(sim, policies(ladder=BY_SUSPEND, hosts=("bm1",)))
    low = sim.submit("htc", 300.0, requeue=False)
    run.until(lambda: running(sim, low), 60)
    (name,) = sim.job(low).nodes
    high = sim.submit("batch", 600.0, required_nodes=("bm1",))
    run.until(lambda: run.world.managed[name].phase is Phase.PARKED, 60)
    run.until(lambda: run.world.instances["bm1", name].state is InstanceState.SUSPENDED, 60)
    return run, low, high, name


def said_of(run: Rehearsal, name: str) -> str:
    return " ".join(why(r) for r in run.cycle.last.refusals if r.subject == name)


def test_a_saved_instance_that_cannot_be_read_is_kept() -> None:
    """For hours, whatever its host does; the reason is told; once it can be read it goes on."""
    run, low, high, name = suspended()
    sim = run.sim
    sim.instance(name).unreadable = WHY
    run.run(2 * HOUR_S)
    assert ended(sim, high)
    assert run.world.managed[name].phase is Phase.PARKED
    assert WHY in said_of(run, name)
    assert name in sim.hosts["bm1"].instances
    sim.instance(name).unreadable = ""
    run.until(lambda: ended(sim, low), 1000)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_its_hosts_room_is_proven_free_although_it_is_unknown_what_is_on_disk() -> None:
    """The hypervisor shows that nothing of it runs: another high job starts without waiting."""
    run, _, high, name = suspended()
    sim = run.sim
    sim.instance(name).unreadable = WHY
    run.until(lambda: ended(sim, high), 1000)
    seen = run.world.instances["bm1", name]
    assert (seen.state, seen.occupies_cpu, seen.occupies_memory) == (InstanceState.UNKNOWN, False, False)
    again = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, again), 60)
