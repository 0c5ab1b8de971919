"""Devices by constraint, in simulated time: there while their job is, and nobody else's."""

from __future__ import annotations

import pytest

from backfill.core.model.devices import Sharing
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.sentences import why
from backfill.core.policies.demand import Demand
from backfill.core.policies.devices import DeviceRule, Devices
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.device_cluster import RULES, functions, held, plugged
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running


def test_a_job_has_what_it_asks_for_while_it_is_there() -> None:
    """Its own region; the next job on the same instance gets another one; others get nothing."""
    sim = cluster()
    run = play(sim, policies(devices=RULES))
    asking = sim.submit("htc", 30.0, features="shm")
    plain = sim.submit("htc", 30.0)
    run.until(lambda: running(sim, asking), 100)
    assert plugged(sim, asking)  # before its first command
    run.until(lambda: running(sim, plain), 100)
    first = held(sim)
    assert set(first) == {asking}
    assert first[asking].region_mb == 16
    run.until(lambda: ended(sim, asking, plain) and not held(sim), 100)
    again = sim.submit("htc", 30.0, features="shm")
    run.until(lambda: plugged(sim, again), 100)
    assert held(sim)[again].regions != first[asking].regions
    run.until(lambda: not run.world.managed, 600)
    assert sim.provider.holdings() == ()
    assert sim.audit() == []


def test_a_start_is_held_until_its_devices_are_there() -> None:
    """Also where plugging takes some tries; a job that asks for nothing is not held."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    sim.faults.fail("plug", UnreachableError("vn1", "libvirtd died"), times=2)
    run = play(sim, policies(devices=RULES, answer_within_s=8.0))
    job = sim.submit("htc", 60.0, features="vf")
    run.until(lambda: job in held(sim), 100)
    assert not running(sim, job)
    assert not plugged(sim, job)
    assert run.world.claims[job].waiting
    run.until(lambda: running(sim, job), 10)
    assert plugged(sim, job)
    plain = sim.submit("htc", 60.0, features="backfill")
    run.until(lambda: running(sim, plain), 60)
    run.until(lambda: not run.world.claims, 10)
    assert sim.audit() == []


def never_plugged() -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job's start is held for devices that cannot be plugged."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    sim.faults.fail("plug", UnreachableError("vn1", "libvirtd died"), times=-1)
    run = play(sim, policies(devices=RULES, answer_within_s=30.0))
    job = sim.submit("htc", 60.0, features="vf")
    run.until(lambda: job in held(sim), 100)
    return sim, run, job


def test_a_start_is_held_no_longer_where_the_host_is_wanted() -> None:
    """Slurm cannot suspend a job that is being started: it must not wait for what will not come."""
    sim, run, job = never_plugged()
    taker = sim.submit("batch", 60.0, required_nodes=(held(sim)[job].host,))
    run.until(lambda: running(sim, taker), 10)
    assert job not in run.world.claims or not run.world.claims[job].waiting
    sim.faults.clear()
    run.until(lambda: ended(sim, taker, job), 600)


def test_a_job_that_leaves_while_its_start_is_held_is_waited_for_no_more() -> None:
    """Nothing is left of its claim, and its devices are free again."""
    sim, run, job = never_plugged()
    sim.user_cancel(job)
    run.until(lambda: not run.world.claims and not held(sim), 60)


def test_a_function_belongs_to_one_job_and_the_other_waits_for_it() -> None:
    """The host has one, so one node offers it: who came second gets it when the first has gone."""
    sim = one_host()
    functions(sim, "bm1")
    run = play(sim, policies(hosts=("bm1",), devices=RULES))
    one, two = (sim.submit("htc", length, features="vf") for length in (30.0, 60.0))
    run.until(lambda: running(sim, one) or running(sim, two), 100)
    first, second = (one, two) if running(sim, one) else (two, one)
    text = "0 of 1 virtual functions for others"
    run.until(lambda: any(text in why(r) for r in run.cycle.last.refusals), 30)
    while not ended(sim, first):
        sim.step_to(sim.now_s + 0.5)
        assert not running(sim, second) or ended(sim, first)
    run.until(lambda: running(sim, second), 60)
    assert plugged(sim, second)
    assert len(run.world.managed) == 1
    run.until(lambda: ended(sim, one, two) and not held(sim), 400)
    assert sim.audit() == []


def test_devices_of_a_host_that_are_for_one_job_are_waited_for_in_the_queue() -> None:
    """There are functions for both, but the second begins when the first has gone, with its own."""
    sim = one_host()
    functions(sim, "bm1", each=2)
    rules = Devices((DeviceRule("vf", functions=1),))
    run = play(sim, policies(hosts=("bm1",), devices=rules))
    jobs = [sim.submit("htc", 60.0, features="vf") for _ in range(2)]
    said: set[str] = set()
    while not ended(sim, *jobs):
        sim.step_to(sim.now_s + 0.5)
        going = [job for job in jobs if running(sim, job)]
        assert len(going) <= 1
        assert all(plugged(sim, job) for job in going)
        said.update(why(refusal) for refusal in run.cycle.last.refusals)
    assert "devices of bm1 serve one job at a time, and vn1 has some" in said
    assert sim.audit() == []


def test_memory_that_is_for_one_job_of_a_host_is_waited_for_in_the_queue() -> None:
    """A region of its own is as exclusive as a function: nobody begins without what is his."""
    sim = one_host()
    rules = Devices((DeviceRule("shm", region_mb=16),))
    run = play(sim, policies(hosts=("bm1",), devices=rules))
    plain = [sim.submit("htc", 300.0) for _ in range(2)]
    jobs = [sim.submit("htc", 60.0, features="shm") for _ in range(2)]
    while not ended(sim, *jobs):
        sim.step_to(sim.now_s + 0.5)
        going = [job for job in jobs if running(sim, job)]
        assert len(going) <= 1
        assert all(plugged(sim, job) for job in going)
    run.until(lambda: ended(sim, *plain), 600)
    assert sim.audit() == []


@pytest.mark.parametrize("users", [("ann", "ann"), ("ann", "bob")])
def test_devices_of_a_host_that_are_for_one_user_are_shared_by_his_jobs_only(users: tuple[str, str]) -> None:
    """Both of one user run at a time; where another one waits as well, each gets a turn."""
    sim = one_host()
    functions(sim, "bm1", each=2)
    rules = Devices((DeviceRule("vf", functions=1, sharing=Sharing.ONE_OWNER),))
    run = play(sim, policies(hosts=("bm1",), devices=rules))
    jobs = [sim.submit("htc", 60.0, features="vf", user=user) for user in users]
    most = 0
    while not ended(sim, *jobs):
        sim.step_to(sim.now_s + 0.5)
        going = [job for job in jobs if running(sim, job)]
        assert all(plugged(sim, job) for job in going)
        most = max(most, len(going))
    assert most == (2 if users[0] == users[1] else 1)
    run.until(lambda: not run.world.managed, 600)
    assert sim.audit() == []


def test_a_job_on_two_nodes_has_the_devices_of_one_host_for_itself() -> None:
    """The rule is about jobs: its own two instances may share the host."""
    sim = one_host()
    functions(sim, "bm1", each=2)
    rules = Devices((DeviceRule("vf", functions=1),))
    run = play(sim, policies(hosts=("bm1",), devices=rules, demand=Demand(max_nodes=2)))
    wide = sim.submit("htc", 60.0, features="vf", num_nodes=2, cpus=2)
    run.until(lambda: running(sim, wide), 100)
    assert len(sim.provider.holdings()) == 2


def test_a_job_whose_function_is_gone_is_told_and_gets_it_when_it_is_there_again() -> None:
    """A card that lost its functions: the start is held for a while, then the job begins."""
    sim = one_host()
    functions(sim, "bm1")
    run = play(sim, policies(hosts=("bm1",), devices=RULES, scale=Scale(idle_s=600)))
    first = sim.submit("htc", 10.0, features="vf")
    run.until(lambda: ended(sim, first) and not held(sim), 100)
    lost = sim.provider.functions[:]
    sim.provider.functions.clear()
    second = sim.submit("htc", 90.0, features="vf")
    run.until(lambda: running(sim, second), 100)
    assert not held(sim)
    run.until(lambda: any(second == r.about for r in run.cycle.last.refusals), 30)
    assert any("0 of 0 virtual functions free" in why(r) for r in run.cycle.last.refusals)
    sim.provider.functions += lost
    run.until(lambda: plugged(sim, second), 60)
    run.until(lambda: ended(sim, second) and not held(sim), 400)
    assert sim.audit() == []


@pytest.mark.parametrize("anew", [False, True])
def test_one_reading_without_a_job_takes_no_device_from_it(anew: bool) -> None:
    """It may be at work with it. A daemon that begins anew has never seen the job, and asks by its name."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    run = play(sim, policies(devices=RULES))
    job = sim.submit("htc", 600.0, features="vf")
    run.until(lambda: running(sim, job), 100)
    run.run(20.0)
    before = held(sim)
    sim.faults.misread(Odd.NO_JOBS, times=1)
    if anew:
        run.kill()
        run.start()
    for _ in range(40):
        run.run(0.25)
        assert plugged(sim, job)
    assert held(sim) == before
    run.until(lambda: ended(sim, job) and not held(sim), 700)
    assert sim.audit() == []


def test_only_nodes_on_hosts_that_have_functions_offer_them() -> None:
    """Jobs that want none are spread as ever, and none of them keeps a function from another."""
    sim = cluster()
    functions(sim, "bm2")
    run = play(sim, policies(devices=RULES))
    plain = [sim.submit("htc", 300.0) for _ in range(4)]
    run.until(lambda: running(sim, *plain), 100)
    assert {m.host for m in run.world.managed.values()} == {"bm1", "bm2"}
    asking = sim.submit("htc", 60.0, features="vf")
    run.until(lambda: running(sim, asking), 100)
    assert held(sim)[asking].host == "bm2"
    (name,) = sim.job(asking).nodes
    offers = {n for n, node in run.world.nodes.items() if "vf" in node.features}
    assert offers == {name}


def test_idle_nodes_that_offer_nothing_make_room_for_one_that_does() -> None:
    """All names are taken by nodes that idle: one of them goes, although it is soon for that."""
    sim = one_host(cpus=2)
    functions(sim, "bm1")
    run = play(sim, policies(hosts=("bm1",), devices=RULES, scale=Scale(warm=2, idle_s=20)))
    run.until(lambda: len(phases(run, Phase.READY)) == 2, 100)
    asking = sim.submit("htc", 60.0, features="vf")
    run.until(lambda: running(sim, asking), 100)
    assert plugged(sim, asking)


def test_a_daemon_that_dies_between_the_book_and_the_guest_plugs_later() -> None:
    """What is held and not plugged is plugged by whoever comes next; it is never held twice."""
    sim = cluster()
    functions(sim, "bm1", "bm2")
    sim.faults.fail("plug", UnreachableError("vn1", "libvirtd died"), times=2)
    run = play(sim, policies(devices=RULES))
    job = sim.submit("htc", 60.0, features="vf")
    run.until(lambda: job in held(sim), 100)
    assert not plugged(sim, job)
    run.kill()
    run.start()
    run.until(lambda: plugged(sim, job), 60)
    run.until(lambda: ended(sim, job) and not held(sim), 200)
    assert sim.audit() == []


def test_its_devices_move_with_the_job() -> None:
    """Its host is taken, it goes on at the other one with another function, and returns that."""
    sim = cluster()
    functions(sim, "bm1", "bm2", each=2)
    ladder = Ladder((RungRule(Rung.MIGRATE, within_s=60.0), RungRule(Rung.REQUEUE)))
    run = play(sim, policies(devices=RULES, ladder=ladder))
    job = sim.submit("htc", 120.0, features="vf")
    run.until(lambda: plugged(sim, job), 100)
    source = held(sim)[job].host
    taker = sim.submit("batch", 300.0, required_nodes=(source,))
    run.until(lambda: running(sim, taker), 60)
    run.until(lambda: plugged(sim, job) and held(sim)[job].host != source, 60)
    assert sim.job(job).restarts == 0
    run.until(lambda: ended(sim, job) and not held(sim), 400)
    # A guest that runs takes longer to leave than a hook waits: such is this ladder.
    assert {violation.kind for violation in sim.audit()} <= {"room"}
