"""A cloud without room, or states that do not render: it passes, and nobody has to say that."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Tag
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.readiness import Readiness
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import DriverError, RefusedError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.test_eviction import cluster, policies

FOREVER = 1000
HOUR_S = 3600.0


def pool() -> tuple[SimulatedWorld, PolicySet]:
    """One cloud with room for one, a node tried three times at most."""
    sim = cluster(hosts=())
    sim.add_host("east", cpus=1, node=False)
    return sim, replace(policies(), hosts=("east",), scale=Scale(give_up_after=3))


def test_what_others_can_mend_is_tried_until_they_have() -> None:
    """Such as a broken pillar: however long it takes, the job gets its node by itself."""
    sim, given = pool()
    sim.faults.fail("create", DriverError("salt", "the pillar has no sentinel"), times=20)
    journal = MemoryJournal()
    run = Rehearsal(sim, given, journal)
    job = sim.submit("htc", 10.0)
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 24 * HOUR_S)
    assert sim.now_s - sim.job(job).submit_s > HOUR_S / 2
    assert not any("given-up" in str(record.body) for record in journal.read())


def test_what_is_refused_for_good_is_given_up() -> None:
    """Such as an image that is not there: then a person says when to try again."""
    sim, given = pool()
    sim.faults.fail("create", RefusedError("node", "there is no such image"), times=FOREVER)
    run = Rehearsal(sim, given, MemoryJournal())
    sim.submit("htc", 10.0)
    run.until(lambda: Phase.GIVEN_UP in {m.phase for m in run.world.managed.values()}, 4 * HOUR_S)


def test_a_server_that_found_no_room_after_all_is_begun_anew_at_once() -> None:
    """It counts for no back-off, breaker or giving up: its cloud has learnt where not to try."""
    sim, given = pool()
    run = Rehearsal(sim, given, MemoryJournal())
    job = sim.submit("htc", 10.0)
    seen: set[Tag] = set()
    while len(seen) < 6:
        run.until(lambda: bool(tags(run) - seen), 20)
        (instance,) = run.world.fleet.instances_on("east")
        seen.add(instance.tag)
        sim.crash_instance(instance.name)
        lost = replace(instance, state=InstanceState.CRASHED, no_room="No valid host was found")
        run.cycle.take([ch.InstanceSeen(lost, sim.now_s)])
    run.until(lambda: sim.job(job).state is JobState.COMPLETED, 120)
    assert sim.audit() == []


def tags(run: Rehearsal) -> set[Tag]:
    return {instance.tag for instance in run.world.fleet.instances_on("east")}


def test_an_outage_of_the_file_server_ends_no_name() -> None:
    """While it lasts boots are tried ever more seldom; once it is repaired all goes on by itself."""
    sim = cluster()
    rules = Readiness(files_within_s=10.0, rest_s=100.0)
    run = Rehearsal(sim, replace(policies(), readiness=rules), MemoryJournal())
    sim.stop_file_server()
    lows = [sim.submit("htc", 100.0) for _ in range(3)]
    run.run(500.0)
    assert {m.phase for m in run.world.managed.values()} == {Phase.FAILED}
    sim.start_file_server()
    run.until(lambda: all(sim.job(low).state is JobState.COMPLETED for low in lows), 600)
