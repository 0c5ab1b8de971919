"""Parents of instant clones kept ready on every host, and given up for whoever gets the host."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import CloneMethod, CloneParent, Flavour, Host
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.quantities import Resources
from backfill.core.model.records import decode
from backfill.core.model.refusals import Code, Goal
from backfill.core.model.sentences import why
from backfill.core.policies.cloning import Choice, Cloning
from backfill.core.policies.environments import Environments, ImageRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import DriverError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, play, policies, running

WARM = Environments(rules=(ImageRule("default", warm_parents=1),))
SHAPE = TWELVE.flavour
NOW_S = 1_700_000_000.0


def has_parent(sim: SimulatedWorld, host: str) -> bool:
    return sim.hosts[host].view().has_parent("default", SHAPE)


def made(run: Rehearsal) -> list[str]:
    """Hosts of all parents that were asked for, in order."""
    intents = (decode(r.body) for r in run.journal.read() if r.kind == "intent")
    return [step.subject for step in intents if isinstance(step, act.MakeParent)]


def test_every_host_keeps_one_ready_before_anybody_asks() -> None:
    """One each, made once, and written into the journal like any other step."""
    sim = cluster()
    run = play(sim, policies(environments=WARM))
    run.until(lambda: has_parent(sim, "bm1") and has_parent(sim, "bm2"), 30)
    run.run(60)
    assert sorted(made(run)) == ["bm1", "bm2"]
    assert not run.world.managed


def test_nobody_keeps_what_nobody_wants() -> None:
    """Without the catalogue's word one is made when the first clone needs it, and not before."""
    sim = cluster()
    run = play(sim, policies(cloning=Cloning(method=Choice.INSTANT)))
    run.run(60)
    assert made(run) == []
    job = sim.submit("htc", 60.0)
    run.until(lambda: running(sim, job), 60)
    (node,) = run.world.managed.values()
    assert made(run) == [node.host]
    (instance,) = sim.hosts[node.host].instances.values()
    assert instance.spec.method is CloneMethod.INSTANT


def test_a_host_that_is_given_to_a_job_gets_none_until_it_is_free() -> None:
    """Making one would take what the job was given."""
    sim = cluster()
    sim.submit("batch", 100.0, required_nodes=("bm1",))
    sim.clock.advance(5.0)
    run = play(sim, policies(environments=WARM))
    run.until(lambda: has_parent(sim, "bm2"), 30)
    run.run(30)
    assert not has_parent(sim, "bm1")
    run.until(lambda: has_parent(sim, "bm1"), 120)


def test_a_bad_image_is_not_tried_again_and_again() -> None:
    """Every try boots a guest: they become as seldom as those of an instance that fails."""
    sim = cluster()
    sim.faults.fail("make_parent", DriverError("default", "its first clone was bad"), times=-1)
    run = play(sim, policies(environments=WARM, hosts=("bm1",)))
    run.run(3600)
    assert 2 <= len(made(run)) <= 12
    assert any("its first clone was bad" in why(r) for r in run.cycle.last.refusals)


def test_making_one_counts_as_a_boot() -> None:
    """limits.boots_at_once holds for instances and parents together."""
    world = seen(parent(made=False))
    rules = policies(environments=WARM, limits=Limits(boots_at_once=1))
    world.apply(ch.HostSeen(Host("bm2", "bm2", Resources(4, 4096), parents=()), NOW_S))
    world.apply(ch.SourceSeen("bm2", NOW_S))
    assert steps(world, rules) == []


def test_an_instance_is_no_boot_too_many_beside_one() -> None:
    """Nor is an instance begun beyond the limit while one is being made."""
    world = seen(parent(made=False))
    world.apply(ch.JobSeen(Job("1", 1, "htc", JobState.PENDING, cpus=1, reason="Resources"), NOW_S))
    assert steps(world, policies(hosts=("bm1",), limits=Limits(boots_at_once=1))) == []
    assert steps(world, policies(hosts=("bm1",), limits=Limits(boots_at_once=2)))


# --- the host is wanted ------------------------------------------------------------------------


def parent(*, made: bool) -> CloneParent:
    return CloneParent("default", SHAPE.cpus, SHAPE.memory_mb, SHAPE.disk_gb, made)


def seen(*parents: CloneParent, memory_mb: int = 4096) -> World:
    """A world with one host, free in Slurm, and what is on it."""
    sim, world = cluster(), World()
    world.apply(ch.Tick(NOW_S))
    for node in sim.slurm.observe().nodes.values():
        world.apply(ch.NodeSeen(node, NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(4, memory_mb), parents=parents), NOW_S))
    world.apply(ch.SourceSeen("bm1", NOW_S))
    return world


def steps(world: World, rules: PolicySet) -> list[object]:
    return [*plan(world, rules, from_scratch=True).actions]


def test_one_in_the_making_is_given_up_for_a_job_and_the_job_waits_for_that() -> None:
    """It runs like an instance: the room is free when it has ended, and not before."""
    world, rules = seen(parent(made=False)), policies(environments=WARM, hosts=("bm1",))
    world.apply(ch.Claimed("7", ("bm1",), NOW_S, waiting=True))
    (step,) = steps(world, rules)
    assert isinstance(step, act.CancelParents)
    assert step.subject == "bm1"
    world.apply(ch.HostSeen(Host("bm1", "bm1", Resources(4, 4096), parents=()), NOW_S + 0.1))
    (answer,) = steps(world, rules)
    assert isinstance(answer, AnswerClaim)
    assert answer.ok


def test_one_in_the_making_is_beside_no_job_that_leaves_room_for_instances() -> None:
    """Where only as many leave as a job needs, it is given up all the same, and waited for."""
    world = seen(parent(made=False))
    rules = policies(environments=WARM, hosts=("bm1",), victims=Victims(extent=Extent.NEEDED))
    node = Node("bm1", NodeBase.ALLOCATED, cpus=4, cpus_allocated=4)
    world.apply(ch.NodeSeen(node, NOW_S + 0.1))
    job = Job("7", 7, "batch", JobState.RUNNING, nodes=("bm1",), cpus=4, start_s=NOW_S)
    world.apply(ch.JobSeen(job, NOW_S + 0.1))
    world.apply(ch.Claimed("7", ("bm1",), NOW_S, waiting=True))
    assert [type(s) for s in steps(world, rules)] == [act.CancelParents]


def test_one_that_is_just_being_started_is_given_up_as_well() -> None:
    """The host has not been read since: that the call is under way is enough."""
    world, rules = seen(), policies(environments=WARM, hosts=("bm1",))
    (step,) = steps(world, rules)
    assert isinstance(step, act.MakeParent)
    world.apply(ch.OperationStarted("MakeParent:bm1:0:default", NOW_S, "bm1"))
    world.apply(ch.Claimed("7", ("bm1",), NOW_S, waiting=True))
    assert [type(s) for s in steps(world, rules)] == [act.CancelParents]


def test_one_that_is_made_stands_in_nobodys_way() -> None:
    """It is files: the claim is answered at once."""
    world, rules = seen(parent(made=True)), policies(environments=WARM, hosts=("bm1",))
    world.apply(ch.Claimed("7", ("bm1",), NOW_S, waiting=True))
    assert [type(s) for s in steps(world, rules)] == [AnswerClaim]


def test_one_of_another_shape_is_no_use() -> None:
    """Instances are given more memory: clones of the old parent would not have it."""
    larger = replace(TWELVE, flavour=Flavour(cpus=1, memory_mb=512))
    world = seen(parent(made=True))
    (step,) = steps(world, policies(environments=WARM, instances=larger, hosts=("bm1",)))
    assert isinstance(step, act.MakeParent)
    assert step.flavour == larger.flavour


def test_without_room_none_is_made() -> None:
    """And somebody who asks is told why."""
    world = seen(memory_mb=200)
    found = plan(world, policies(environments=WARM, hosts=("bm1",)), from_scratch=True)
    assert found.actions == ()
    (refusal,) = (r for r in found.refusals if r.subject == "bm1")
    assert refusal.key == ("bm1", Goal.PARENT, "default")
    assert refusal.code is Code.HOST_FULL
