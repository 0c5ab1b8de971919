"""Software by constraint, in simulated time: the right image for each job, within its limits."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.fleet import FleetState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import why
from backfill.core.policies.cloning import Cloning
from backfill.core.policies.environments import Environment, Environments, ImageRule
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.reconcile.admission import wants
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.fleet_order import fleet_order
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, play, policies, running

CMS = Environment("cms", "cms-7")
AWAY = Ladder((RungRule(Rung.MIGRATE), RungRule(Rung.PAUSE), RungRule(Rung.REQUEUE)))
CATALOGUE = Environments((CMS,), (ImageRule("cms-7", os_family="rhel"),))


def images(run: Rehearsal) -> Counter[str]:
    return Counter(m.image for m in run.world.managed.values())


def test_each_job_gets_an_instance_of_the_image_that_it_asks_for() -> None:
    """And jobs that ask for nothing get the usual one, or whatever is idle."""
    sim = cluster()
    run = play(sim, policies(environments=CATALOGUE))
    cms = [sim.submit("htc", 60.0, features=f) for f in ("cms", "rhel")]
    plain = sim.submit("htc", 60.0)
    run.until(lambda: running(sim, *cms, plain), 100)
    assert images(run) == {"cms-7": 2, "": 1}
    made = {i.spec.name: i.spec for h in sim.hosts.values() for i in h.instances.values()}
    for node in run.world.managed.values():
        image, features = ("cms-7", {"backfill", "cms", "rhel"})
        if not node.image:
            image, features = ("default", {"backfill"})
        assert made[node.name].image == image
        assert set(run.world.nodes[node.name].features) == features
    run.until(lambda: not run.world.managed, 600)
    assert sim.audit() == []


# Of hosts of two kinds, one alone has the image.
APART = replace(CATALOGUE, images=("cms-7", "default"), lacking={"cms-7": frozenset({"bm1"})})


def test_an_instance_is_made_where_its_image_is() -> None:
    """The first host in the file does not have it, and keeps its room for others."""
    sim = cluster(cpus=2)
    run = play(sim, policies(environments=APART))
    cms = [sim.submit("htc", 60.0, features="cms") for _ in range(3)]
    run.until(lambda: running(sim, *cms[:2]), 100)
    run.run(20.0)
    assert {m.host for m in run.world.managed.values() if m.image} == {"bm2"}
    (told,) = [r for r in run.cycle.last.refusals if r.code is Code.NO_IMAGE]
    assert (told.subject, why(told)) == ("bm1", "bm1 has no image cms-7")
    plain = sim.submit("htc", 10.0)
    run.until(lambda: ended(sim, plain, *cms), 600)
    assert sim.audit() == []


def test_an_order_waits_for_hosts_that_have_its_image() -> None:
    """Where room is elsewhere, it says that this is elsewhere."""
    sim = cluster(cpus=2)
    rules = policies(environments=APART)
    run = play(sim, rules)
    run.run(2.0)
    order = fleet_order(run.world, rules, {"n": 2, "image": "cms"})
    with pytest.raises(CommandError, match="all hosts with image cms-7 together have room for 2"):
        fleet_order(run.world, rules, {"n": 3, "image": "cms"})
    taken = sim.submit("batch", 30.0, cpus=2, required_nodes=("bm2",))
    run.until(lambda: running(sim, taken), 30)
    run.world.apply(ch.FleetSet(order))
    run.run(5.0)
    assert run.world.fleets[order.id].members == ()
    assert any("bm1 has no image cms-7" in why(r) for r in run.cycle.last.refusals if r.subject == order.id)
    run.until(lambda: run.world.fleets[order.id].state is FleetState.READY, 100)
    assert {m.host for m in run.world.managed.values()} == {"bm2"}


def test_what_moves_goes_where_its_image_is() -> None:
    """The other host has room, and no image of that name."""
    sim = cluster(cpus=2)
    run = play(sim, policies(environments=APART, ladder=AWAY))
    cms = sim.submit("htc", 100.0, features="cms")
    run.until(lambda: running(sim, cms), 60)
    taken = sim.submit("batch", 30.0, cpus=2, required_nodes=("bm2",))
    run.until(lambda: running(sim, taken) and len(phases(run, Phase.PARKED)) == 1, 30)
    run.until(lambda: ended(sim, cms), 300)
    assert not any(r.body.get("t") == "MigrateInstance" for r in run.journal.read())
    assert sim.audit() == []


@pytest.mark.parametrize(("lacking", "words"), [({"bm1"}, ""), ({"bm1", "bm2"}, "no image cms-7")])
def test_a_jobs_own_machines_are_where_its_image_is(lacking: set[str], words: str) -> None:
    """On no host it can never be had, which the owner is told at once."""
    apart = replace(APART, lacking={"cms-7": frozenset(lacking)})
    sim = cluster()
    run = play(sim, policies(environments=apart, own_machines=OwnMachines(enabled=True)))
    job = sim.submit("htc", 20.0, comment="backfill-vm:image=cms")
    if words:
        run.until(lambda: words in sim.slurm.admin_comment(job), 10)
        assert not run.world.managed
    else:
        run.until(lambda: running(sim, job), 100)
        assert {m.host for m in run.world.managed.values()} == {"bm2"}


def test_idle_ones_of_another_image_make_room() -> None:
    """The host is full of the usual image; a job that needs another one gets its turn."""
    sim = one_host(2)
    rules = policies(hosts=("bm1",), environments=CATALOGUE, scale=Scale(idle_s=30, warm=2))
    run = play(sim, rules)
    plain = [sim.submit("htc", 20.0) for _ in range(2)]
    run.until(lambda: ended(sim, *plain), 100)
    cms = sim.submit("htc", 20.0, features="cms")
    run.until(lambda: ended(sim, cms), 200)
    assert sim.audit() == []


def begun(run: Rehearsal, sim: SimulatedWorld, minutes: int) -> list[int]:
    made = []
    for _ in range(minutes):
        run.run(60)
        made.append(len(run.world.managed))
    return made


def test_an_image_has_its_own_rate_and_its_own_limit() -> None:
    """Two a minute, four CPUs in all; other images do not mind."""
    rule = ImageRule("cms-7", most_cpus=4, creates_per_min=2)
    sim = cluster()
    run = play(sim, policies(environments=Environments((CMS,), (rule,))))
    for _ in range(6):
        sim.submit("htc", 400.0, features="cms")
    assert begun(run, sim, 3) == [2, 4, 4]
    assert any("image cms-7 may have 4 CPUs" in why(r) for r in run.cycle.last.refusals)
    plain = [sim.submit("htc", 30.0) for _ in range(4)]
    run.until(lambda: running(sim, *plain), 30)
    assert images(run) == {"cms-7": 4, "": 4}
    run.until(lambda: not run.world.managed, 2000)
    assert sim.audit() == []


def test_a_host_has_its_rate() -> None:
    """One a minute on each of two hosts."""
    sim = cluster()
    run = play(sim, policies(cloning=Cloning(per_min_per_host=1)))
    for _ in range(6):
        sim.submit("htc", 400.0)
    assert begun(run, sim, 3) == [2, 4, 6]
    hosts = Counter(m.host for m in run.world.managed.values())
    assert hosts == {"bm1": 3, "bm2": 3}


def test_names_are_kept_for_an_image() -> None:
    """And with them the addresses: no other image gets them, and it gets no others."""
    sim = cluster()
    rule = ImageRule("cms-7", names=("vn1", "vn2"))
    run = play(sim, policies(environments=Environments((CMS,), (rule,))))
    cms = [sim.submit("htc", 30.0, features="cms") for _ in range(3)]
    plain = [sim.submit("htc", 60.0) for _ in range(3)]
    run.until(lambda: running(sim, *plain, *cms[:2]), 60)
    by_image = {m.name: m.image for m in run.world.managed.values()}
    assert {n for n, image in by_image.items() if image} == {"vn1", "vn2"}
    run.until(lambda: ended(sim, *cms, *plain), 600)
    assert sim.audit() == []


OURS = Environments((Environment("cms", "cms-7", users=("ada",)),), CATALOGUE.rules)


def test_a_stranger_who_gets_onto_the_node_all_the_same_is_put_back() -> None:
    """Somebody took Slurm's own fence away: the job begins anew where it may be, hardly begun."""
    sim = cluster()
    run = play(sim, policies(environments=OURS, scale=Scale(idle_s=600)))
    member = sim.submit("htc", 30.0, features="cms", user="ada")
    run.until(lambda: ended(sim, member), 100)
    (theirs,) = run.world.managed
    stranger = sim.submit("htc", 300.0, user="eve", required_nodes=(theirs,))
    run.until(lambda: running(sim, stranger), 60)
    run.until(lambda: sim.job(stranger).restarts == 1, 30)
    asked = [r.body for r in run.journal.read() if r.body.get("t") == "RequeueJob"]
    why = "user eve of account (none) may not have environment cms: it is for user ada"
    assert [(body["job_id"], body["reason"]) for body in asked] == [(stranger, why)]
    sim.user_cancel(stranger)
    again = sim.submit("htc", 20.0, features="cms", user="ada")
    run.until(lambda: ended(sim, again), 300)
    assert sim.audit() == []


def test_a_stranger_who_was_there_before_is_left_to_his_end() -> None:
    """The catalogue names its users only now: nothing that runs is destroyed, and nobody follows."""
    sim = cluster()
    run = play(sim, policies(environments=CATALOGUE, scale=Scale(idle_s=600)))
    early = sim.submit("htc", 300.0, features="cms", user="eve")
    run.until(lambda: running(sim, early), 60)
    run.run(70.0)
    run.policies = run.cycle.policies = policies(environments=OURS, scale=Scale(idle_s=600))
    run.run(60.0)
    assert any(r.code is Code.LEFT_TO_END for r in run.cycle.last.refusals)
    assert all(node.drained_by_us for n, node in run.world.nodes.items() if n in run.world.managed)
    run.until(lambda: ended(sim, early), 400)
    assert sim.job(early).restarts == 0
    member = sim.submit("htc", 20.0, features="cms", user="ada")
    run.until(lambda: ended(sim, member), 300)
    assert sim.audit() == []


def test_an_idle_node_for_some_is_none_for_others() -> None:
    """A job that asks for nothing does not wait for it: it gets an instance of the usual image."""
    sim = cluster()
    run = play(sim, policies(environments=OURS, scale=Scale(idle_s=600)))
    member = sim.submit("htc", 5.0, features="cms", user="ada")
    run.until(lambda: ended(sim, member), 100)
    (theirs,) = run.world.managed
    sim.admin_drain(theirs, "as Slurm's reservation keeps others away")
    sim.admin_drain(theirs, "")
    sim.submit("htc", 20.0, user="eve")
    run.until(lambda: images(run)[""] == 1, 30)


@pytest.mark.parametrize(("catalogue", "room"), [(OURS, True), (CATALOGUE, False)])
def test_what_slurm_reserves_is_room_for_the_people_of_its_image_only(
    catalogue: Environments, room: bool
) -> None:
    """Each node of an image for some people has a reservation; on others somebody else's job is awaited."""
    sim = cluster()
    rules = policies(environments=catalogue)
    run = play(sim, rules)
    first = sim.submit("htc", 5.0, features="cms", user="ada")
    run.until(lambda: ended(sim, first), 100)
    run.run(2.0)
    (name,) = run.world.ready.idle
    seen = run.world.nodes[name]
    run.world.apply(ch.NodeSeen(replace(seen, flags=seen.flags | {"RESERVED"}), run.now_s))
    waits = sim.job(sim.submit("htc", 5.0, features="cms", user="ada"))
    need = rules.demand.need([waits], rules.instances.flavour, run.now_s)
    (want,) = wants(run.world, rules, {("cms-7", ""): (need, "")})
    assert (want.lacking <= 0) is room
