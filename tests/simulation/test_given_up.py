"""Names that were given up come back once the site is well; whoever is to blame himself stays given up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from backfill.core.model.changes import NodeForgotten
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.records import decode
from backfill.core.model.sentences import why
from backfill.core.policies.environments import Environment, Environments
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.readiness import Readiness
from backfill.core.policies.scale import Scale
from backfill.core.policy import Template
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import DriverError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, ended, phases, policies, ready, running

HOUR_S = 3600.0
SCALE = Scale(idle_s=1e6, boot_within_s=30.0, retry_after_s=10.0, give_up_after=3)


def silent(sim: SimulatedWorld, names: Iterable[str], *, on: bool = True) -> None:
    """Guests of these names start and are never heard of."""
    for name in names:
        sim.faults.never_boots(name, -1 if on else 0)


def lived(sim: SimulatedWorld) -> Rehearsal:
    """It looks six times a minute: hours pass."""
    return Rehearsal(sim, policies(scale=SCALE), MemoryJournal(), poll_s=10.0)


def at_work(sim: SimulatedWorld, run: Rehearsal) -> ManagedNode:
    """An instance with a job that lasts for days."""
    low = sim.submit("htc", 1e6)
    run.until(lambda: running(sim, low), 60)
    (node,) = run.world.managed.values()
    return node


def boots(run: Rehearsal, name: str = "") -> list[str]:
    """The names under which a boot was begun, in order."""
    made = [r.subject for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "CreateInstance"]
    return [one for one in made if name in ("", one)]


@pytest.mark.parametrize("wanted", [1, 8])
def test_after_an_outage_of_the_site_all_names_come_back(wanted: int) -> None:
    """Nobody says that it is over: a single boot in an hour at least shows it, and the others follow.

    A daemon that was started anew meanwhile goes on by the same records.
    """
    sim = cluster(cpus=6)
    run = lived(sim)
    silent(sim, TWELVE.names)
    jobs = [sim.submit("htc", 100.0) for _ in range(wanted)]
    run.run(4 * HOUR_S)
    assert phases(run, Phase.GIVEN_UP)
    tried = len(boots(run))
    run.kill()
    run.start()
    silent(sim, TWELVE.names, on=False)
    run.until(lambda: running(sim, *jobs), 1.5 * HOUR_S)
    assert len(boots(run)) <= tried + wanted
    run.until(lambda: ended(sim, *jobs), 300.0)
    more = [sim.submit("htc", 100.0) for _ in range(12)]
    run.until(lambda: ended(sim, *more), 2 * HOUR_S)
    assert phases(run, Phase.GIVEN_UP) == set()
    assert sim.audit() == []


def test_while_it_lasts_a_try_is_rare_and_alone() -> None:
    """However many jobs wait; and work that stands still is none of it."""
    sim = cluster(cpus=2)
    run = lived(sim)
    node = at_work(sim, run)
    sim.submit("batch", 1e5, cpus=2, required_nodes=(node.host,))
    run.until(lambda: phases(run, Phase.PARKED) == {node.name}, 60)
    silent(sim, TWELVE.names)
    for _ in range(6):
        sim.submit("htc", 100.0)
    run.run(HOUR_S)
    most, before = 0, len(boots(run))
    for _ in range(int(4 * HOUR_S / 30)):
        run.run(30.0)
        most = max(most, len(phases(run, Phase.BOOTING)))
    assert most == 1
    assert 3 <= len(boots(run)) - before <= 3 * 4
    assert run.world.managed[node.name].phase is Phase.PARKED


def test_what_comes_back_shows_nothing_of_whether_boots_work() -> None:
    """A host is taken and given back all day while no boot works: nobody is to blame for that."""
    sim = cluster(cpus=6)
    run = lived(sim)
    node = at_work(sim, run)
    silent(sim, TWELVE.names)
    for _ in range(6):
        sim.submit("htc", 1e5)
    while sim.now_s < run.world.managed[node.name].created_s + 4 * HOUR_S:
        sim.submit("batch", 60.0, cpus=6, required_nodes=(node.host,))
        run.run(400.0)
    assert run.world.managed[node.name].phase is Phase.READY
    given_up = [m.retry for m in run.world.managed.values() if m.phase is Phase.GIVEN_UP]
    assert given_up
    assert not [retry for retry in given_up if retry.cleared or retry.blamed]


def test_a_name_that_fails_while_others_work_stays_given_up() -> None:
    """It is tried as often again as before, and then a person is told how to free it; others work on."""
    sim = cluster()
    run = lived(sim)
    silent(sim, ["vn1"])
    for _ in range(8):
        jobs = [sim.submit("htc", 100.0) for _ in range(9)]
        run.until(lambda jobs=jobs: ended(sim, *jobs), 3 * HOUR_S)  # type: ignore[misc]
        assert ready(run) >= 7
        for name in sorted(phases(run, Phase.READY))[:1]:
            sim.crash_instance(name)
        run.run(HOUR_S)
    assert len(boots(run, "vn1")) == 2 * SCALE.give_up_after
    assert phases(run, Phase.GIVEN_UP) == {"vn1"}
    assert "given up after 6 failures" in run.world.managed["vn1"].reason
    (said,) = [why(r) for r in run.cycle.last.refusals if r.subject == "vn1"]
    assert "only `backfill retry vn1` frees its name" in said


def test_a_person_who_frees_a_name_does_not_wait() -> None:
    """However many others rest: the cause is gone, and the first that works lets the others come back."""
    sim = cluster()
    run = lived(sim)
    silent(sim, TWELVE.names)
    jobs = [sim.submit("htc", 100.0) for _ in range(2)]
    run.run(2 * HOUR_S)
    given_up = sorted(phases(run, Phase.GIVEN_UP))
    assert len(given_up) > 1
    silent(sim, TWELVE.names, on=False)
    freed = run.world.managed[given_up[-1]]
    run.cycle.take([NodeForgotten(freed.name, freed.generation)])
    run.until(lambda: running(sim, *jobs), 60)


def test_a_lower_threshold_condemns_nobody_for_an_outage() -> None:
    """The names failed with all others, however often: nobody is to blame, and they come back."""
    sim = cluster(cpus=6)
    run = lived(sim)
    silent(sim, TWELVE.names)
    jobs = [sim.submit("htc", 100.0) for _ in range(8)]
    run.run(12 * HOUR_S)
    assert phases(run, Phase.GIVEN_UP)
    silent(sim, TWELVE.names, on=False)
    run.policies = run.cycle.policies = policies(scale=replace(SCALE, give_up_after=1))
    run.until(lambda: ended(sim, *jobs), 2 * HOUR_S)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_name_that_failed_long_ago_holds_nobody_up(restarted: bool) -> None:
    """Those that worked since then are gone, and their records: it is no part of another's trouble."""
    sim = cluster(cpus=6)
    rules = policies(scale=replace(SCALE, give_up_after=1, idle_s=30.0))
    run = Rehearsal(sim, rules, MemoryJournal(), poll_s=10.0)
    silent(sim, ["vn1"])
    for _ in range(3):
        jobs = [sim.submit("htc", 50.0) for _ in range(3)]
        run.until(lambda jobs=jobs: ended(sim, *jobs), 5 * HOUR_S)  # type: ignore[misc]
        run.run(HOUR_S)
    assert set(run.world.managed) == phases(run, Phase.GIVEN_UP) == {"vn1"}
    run.run(6 * HOUR_S)
    if restarted:
        run.kill()
        run.start()
    sim.faults.never_boots("vn2", 1)
    jobs = [sim.submit("htc", 50.0) for _ in range(8)]
    run.until(lambda: len(phases(run, Phase.BOOTING)) > 1, 30)
    run.until(lambda: ended(sim, *jobs), 600)


# --- of one image alone --------------------------------------------------------------------------


CATALOGUE = Environments((Environment("bad", "bad-1"), Environment("cms", "cms-7")))


def catalogued(sim: SimulatedWorld, scale: Scale = SCALE, **rules: object) -> Rehearsal:
    """Instances of three images; it looks six times a minute."""
    every = policies(scale=scale, environments=CATALOGUE, **rules)
    return Rehearsal(sim, every, MemoryJournal(), poll_s=10.0)


@pytest.mark.parametrize("first_s", [0.0, HOUR_S])
def test_an_image_that_never_boots_holds_up_no_other(first_s: float) -> None:
    """However long a job asks for it: the usual one is made all the while, and no name is lost."""
    sim = cluster()
    run = catalogued(sim)
    silent(sim, ["bad-1"])
    sim.submit("htc", 100.0, features="bad")
    run.run(first_s)
    jobs = [sim.submit("htc", 600.0) for _ in range(50)]
    # Seven instances at the least work most of the time; ten minutes may pass until one is tried first.
    run.until(lambda: ended(sim, *jobs), 700.0 + 50 / 7 * 600.0 * 1.5)
    before = len(boots(run))
    run.run(6 * HOUR_S)
    assert len(boots(run)) - before <= 6 * 4
    retries = [m.retry for m in run.world.managed.values() if m.phase is Phase.GIVEN_UP]
    assert not [retry for retry in retries if retry.blamed]
    assert sim.audit() == []


def test_what_the_site_lacks_for_one_image_holds_up_no_other() -> None:
    """Its boots are never given up, and each back-off has an end: its jobs are not served first then."""
    sim = cluster()
    run = catalogued(sim, replace(SCALE, idle_s=30.0))
    fault = sim.faults.fail("create", DriverError("salt", "the pillar has no bad"), subject="bad-1", times=-1)
    sim.submit("htc", 100.0, features="bad")
    run.run(300.0)
    jobs = [sim.submit("htc", 600.0) for _ in range(20)]
    run.until(lambda: ended(sim, *jobs), 3 * 600.0 * 1.5)
    fault.end()


def boots_on(run: Rehearsal, host: str) -> list[float]:
    """When a boot was begun on this host."""
    made = [r for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "CreateInstance"]
    return [r.at_s for r in made if decode(r.body).spec.host == host]


def with_a_large_one(at_once: int) -> tuple[SimulatedWorld, Rehearsal]:
    """Two hosts of three CPUs, on the first of which one boot fails, and one of forty, which is broken."""
    sim = cluster(cpus=3)
    sim.add_host("bm3", cpus=40, features=("metal",))
    limits = Limits(boots_at_once=at_once)
    rules = policies(scale=SCALE, hosts=("bm1", "bm2", "bm3"), limits=limits)
    sim.faults.never_boots("bm3", -1)
    sim.faults.never_boots("bm1", 1)
    return sim, Rehearsal(sim, rules, MemoryJournal(), poll_s=10.0)


@pytest.mark.parametrize(("wanted", "at_once"), [(1, 1), (4, 1), (4, 4)])
def test_a_broken_host_stops_no_other(wanted: int, at_once: int) -> None:
    """It has the most room, and the only image failed elsewhere before: a try there tells host from image."""
    sim, run = with_a_large_one(at_once)
    jobs = [sim.submit("htc", 1e6) for _ in range(wanted)]
    run.until(lambda: running(sim, *jobs), 0.5 * HOUR_S)
    streak = run.world.streaks["bm3"]
    assert len(boots_on(run, "bm3")) == streak.count <= 3 + at_once
    assert not [at_s for at_s in boots_on(run, "bm3") if at_s > streak.last_s]


def test_a_host_that_has_failed_shows_by_single_boots_that_it_is_well() -> None:
    """Once the others are full; then it serves like any other."""
    sim, run = with_a_large_one(at_once=4)
    few = [sim.submit("htc", 1e6) for _ in range(4)]
    run.until(lambda: running(sim, *few), 0.5 * HOUR_S)
    more = [sim.submit("htc", 1e6) for _ in range(6)]
    failed = len(boots_on(run, "bm3"))
    run.run(HOUR_S)
    tries = boots_on(run, "bm3")[failed:]
    assert 1 < len(tries) <= HOUR_S / run.policies.readiness.rest_s + 1
    assert all(later - at_s >= run.policies.readiness.rest_s for at_s, later in pairwise(tries))
    sim.faults.never_boots("bm3", 0)
    run.until(lambda: running(sim, *few, *more), HOUR_S)
    assert "bm3" not in run.world.streaks
    assert sim.audit() == []


def test_two_images_that_fail_are_the_site() -> None:
    """Then a try is rare and alone, whichever image it is of; and once it is over all of them come back."""
    sim = cluster(cpus=6)
    run = catalogued(sim)
    silent(sim, TWELVE.names)
    jobs = [sim.submit("htc", 100.0, features=asked) for asked in ("bad", "", "cms", "") * 3]
    run.run(HOUR_S)
    most, before = 0, len(boots(run))
    for _ in range(int(4 * HOUR_S / 30)):
        run.run(30.0)
        most = max(most, len(phases(run, Phase.BOOTING)))
    assert most == 1
    assert len(boots(run)) - before <= 4 * 4
    silent(sim, TWELVE.names, on=False)
    silent(sim, ["bad-1"])
    well = [job for job in jobs if "bad" not in sim.job(job).features]
    assert len(well) == 9
    run.until(lambda: ended(sim, *well), 3 * HOUR_S)


def test_one_bad_image_does_not_rest_the_others() -> None:
    """It fails on more hosts than one, again and again; each time a plain job comes, it begins at once."""
    sim = cluster(cpus=6)
    run = catalogued(sim, replace(SCALE, idle_s=30.0))
    silent(sim, ["bad-1"])
    sim.submit("htc", 100.0, features="bad")
    run.run(1000.0)
    for _ in range(12):
        plain = sim.submit("htc", 30.0)
        run.run(100.0)
        assert ended(sim, plain)
        run.run(900.0)


def test_a_mended_image_is_tried_again_while_others_boot_all_the_time() -> None:
    """It waits for tries of its own alone."""
    sim, names = cluster(cpus=20), tuple(f"vn{number}" for number in range(1, 41))
    sim.provider.boot_s = 60.0
    run = catalogued(
        sim,
        replace(SCALE, idle_s=20.0, boot_within_s=90.0),
        readiness=Readiness(rest_s=60.0),
        limits=Limits(boots_at_once=12, creates_per_hour=5000),
        own_machines=OwnMachines(enabled=True),
        instances=Template(names, tuple(f"10.77.1.{n}/16" for n in range(1, 41)), TWELVE.flavour),
    )
    silent(sim, ["bad-1"])
    plain, bad = sim.submit("htc", 10.0), sim.submit("htc", 100.0, features="bad")
    given_up = False
    for second in range(0, 1800, 20):
        given_up |= bool(phases(run, Phase.GIVEN_UP))
        if second == 600:
            silent(sim, ["bad-1"], on=False)
        sim.submit("htc", 60.0, user="eve", comment="backfill-vm:cpus=1")
        run.run(20.0)
    assert given_up
    assert ended(sim, plain, bad)


def test_what_failed_before_a_restart_and_was_not_needed_since_is_no_sign() -> None:
    """Others have booted after it: the daemon finds that in what it remembers."""
    sim = cluster(cpus=6)
    run = catalogued(sim, replace(SCALE, idle_s=30.0), readiness=Readiness(break_after=100))
    long = [sim.submit("htc", 2e5) for _ in range(2)]
    run.until(lambda: running(sim, *long), 100.0)
    sim.faults.never_boots("vn3", 1)
    never = sim.submit("htc", 100.0)
    run.until(lambda: bool(phases(run, Phase.FAILED)), 200.0)
    for job in (never, *long):
        sim.user_cancel(job)
    run.run(300.0)
    later = sim.submit("htc", 2e5)
    run.until(lambda: running(sim, later), 100.0)
    assert phases(run, Phase.FAILED)
    run.kill()
    run.start()
    silent(sim, ["bad-1"])
    sim.submit("htc", 100.0, features="bad")
    run.until(lambda: bool(phases(run, Phase.GIVEN_UP)), 1000.0)
    plain = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, plain), 100.0)
