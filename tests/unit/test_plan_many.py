"""Plans for many at once: as wide as they are, and with no look at everything for each of them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from backfill.core import placement
from backfill.core.model import changes as ch
from backfill.core.model.actions import CreateInstance, PauseInstance
from backfill.core.model.cluster import Job, JobState, MachineRequest, Node, NodeBase
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import HeldJob, ManagedNode, NodeProof, NodeStop, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal, Reason
from backfill.core.model.sentences import sentence
from backfill.core.picture import JobIndex
from backfill.core.placement import find_host
from backfill.core.policies.environments import Environment, Environments
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policies.spread import Order, Spread
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.queue import Entity, Kind
from backfill.core.reconcile.planner import enact, plan
from backfill.core.world import World

NOW_S = 1_000_000.0
EVERY = 10**6


def policies(count: int, hosts: int) -> PolicySet:
    """Nothing limits the instances but the room."""
    numbers = range(count)
    return PolicySet(
        cluster="c",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(
            tuple(f"v{i}" for i in numbers),
            tuple(f"10.77.{i >> 8}.{i & 255}/16" for i in numbers),
            Flavour(cpus=1, memory_mb=256),
        ),
        hosts=tuple(f"n{i}" for i in range(hosts)),
        limits=Limits(max_instances=EVERY, boots_at_once=EVERY, creates_per_hour=EVERY, max_per_host=EVERY),
    )


def fleet_of_hosts(hosts: int) -> World:
    """Idle hosts of one CPU, just read."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    for number in range(hosts):
        name = f"n{number}"
        world.apply(ch.HostSeen(Host(name, name, Resources(1, 256)), NOW_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.IDLE, cpus=1), NOW_S))
        world.apply(ch.SourceSeen(name, NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    return world


@pytest.mark.parametrize("count", [50, 100])
def test_each_of_many_new_instances_costs_looks_at_its_own_host(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the work grows with the number of instances, not with its square."""
    world, rules, looked = fleet_of_hosts(count), policies(count, count), 0
    for number in range(1, count + 1):
        job = Job(
            str(number), number, "htc", JobState.PENDING, reason="Resources", time_limit_s=60.0 * number
        )
        world.apply(ch.JobSeen(job, NOW_S))
    look, wants = placement._look, 0

    def counted(*arguments: object) -> placement.Look:
        nonlocal looked
        looked += 1
        return look(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(placement, "_look", counted)
    waiting = JobIndex.kinds_pending

    def asked(*arguments: object) -> object:
        nonlocal wants
        wants += 1
        return waiting(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(JobIndex, "kinds_pending", asked)
    found = plan(world, rules)
    made = [action.spec.host for action in found.actions if isinstance(action, CreateInstance)]
    assert made == [f"n{i}" for i in range(count)]
    assert looked <= 3 * count
    assert wants <= 2


class CountedReads(dict[str, Any]):
    """Counts how often something is looked up."""

    asked = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.asked += 1
        return super().get(key, default)


@pytest.mark.parametrize("rule", ["quota", "environment"])
def test_waiting_jobs_that_do_not_count_alike_are_counted_once_for_all_instances(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those above a quota, or that may not have what they ask for, are said nevertheless."""
    count = 40
    world, rules, counted = fleet_of_hosts(count), policies(count, count), 0
    if rule == "quota":
        rules = replace(rules, quotas=Quotas((Quota(count, account="physics"),)))
    else:
        kept = Environment("ml", image="ml", users=("bob",))
        rules = replace(rules, environments=Environments((kept,)))
    for number in range(1, count + 2):
        last = number == count + 1
        job = Job(str(number), number, "htc", JobState.PENDING, account="physics", user="ann")
        job = replace(job, features="ml" if last and rule == "environment" else "")
        world.apply(ch.JobSeen(job, NOW_S))
    waiting = JobIndex.pending

    def asked(*arguments: Any) -> object:
        nonlocal counted
        counted += 1
        return waiting(*arguments)

    monkeypatch.setattr(JobIndex, "pending", asked)
    found = plan(world, rules)
    assert sum(isinstance(action, CreateInstance) for action in found.actions) == count
    assert [
        refusal.subject for refusal in found.refusals if refusal.code.name in ("QUOTA", "ENVIRONMENT")
    ] == [f"job {count + 1}"]
    assert counted == 1


def test_a_waiting_job_whose_rank_changes_is_counted_anew() -> None:
    """A quota lets those count first that Slurm would start first."""
    world = fleet_of_hosts(1)
    rules = replace(policies(1, 0), quotas=Quotas((Quota(1),)))

    def left_out() -> list[str]:
        return [one.subject for one in plan(world, rules).refusals if one.code.name == "QUOTA"]

    for number in (1, 2):
        world.apply(ch.JobSeen(Job(str(number), number, "htc", JobState.PENDING, priority=10), NOW_S))
    assert left_out() == ["job 2"]
    world.apply(ch.PrioritiesSeen(("2",), (11,), NOW_S + 1))
    assert left_out() == ["job 1"]


def test_that_all_hosts_were_read_is_asked_once_for_all_instances() -> None:
    """Each new one waits for that soon after we began to see."""
    count = 40
    world = fleet_of_hosts(count)
    for number in range(1, count + 1):
        world.apply(ch.JobSeen(Job(str(number), number, "htc", JobState.PENDING), NOW_S))
    world.sources = reads = CountedReads(world.sources)
    found = plan(world, policies(count, count))
    assert sum(isinstance(action, CreateInstance) for action in found.actions) == count
    assert reads.asked < 12 * count


def test_a_job_on_very_many_hosts_is_no_sign_that_steps_undo_one_another() -> None:
    """Its claim is looked at again after each step of each instance there."""
    count = 150
    world, rules = fleet_of_hosts(count), policies(count, count)
    for number in range(count):
        name, host = f"v{number}", f"n{number}"
        proof = NodeProof(NOW_S)
        record = ManagedNode(name, "10.77.0.1/16", host, 1, Phase.READY, NOW_S, NOW_S, proof=proof)
        world.apply(ch.NodeManaged(record))
        seen = Instance(name, host, InstanceState.RUNNING, Tag("c", name, 1), Resources(1, 256))
        world.apply(ch.InstanceSeen(seen, NOW_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.IDLE, cpus=1, slurmd_start_s=NOW_S), NOW_S))
    plan(world, rules)
    world.apply(ch.Claimed("900", rules.hosts, NOW_S, waiting=True))
    found = plan(world, rules)
    assert len([action for action in found.actions if isinstance(action, PauseInstance)]) == count
    assert not world.queue.unsettled
    assert not [refusal for refusal in found.refusals if refusal.code.name == "UNSETTLED"]


@pytest.mark.parametrize("order", list(Order))
def test_the_host_that_is_found_is_that_of_a_look_at_all(order: Order) -> None:
    """Whatever has changed since: room, load, who has the host."""
    chance = random.Random(7)
    rules = replace(policies(9, 9), placement=Spread(order))
    world = fleet_of_hosts(9)
    for turn in range(200):
        name = chance.choice(rules.hosts)
        room, busy = Resources(chance.randrange(4), 512), chance.choice([None, 0.1, 0.5, 0.52, 0.9])
        seen_s = NOW_S + turn
        world.apply(ch.HostSeen(Host(name, name, room, busy=busy), seen_s))
        base = chance.choice([NodeBase.IDLE, NodeBase.IDLE, NodeBase.ALLOCATED])
        world.apply(ch.NodeSeen(Node(chance.choice(rules.hosts), base, cpus=1), seen_s))
        pays_s, skip = chance.choice([0.0, 60.0]), chance.choice(["", "n3"])
        found = find_host(world, rules, pays_s, skip=skip)
        kept, world.queue.rooms = world.queue.rooms, None
        assert find_host(world, rules, pays_s, skip=skip) == found
        world.queue.rooms = kept


def test_a_requeued_job_leaves_its_node_when_it_has_completed_there() -> None:
    """It waits before and after that alike: the queue does not change, the node does."""
    world = World()
    waits = Job("7", 7, "htc", JobState.PENDING)
    world.apply(ch.JobSeen(replace(waits, nodes=("v1",), flags=frozenset({"COMPLETING"})), NOW_S))
    changes = world.job_index.waiting_changes
    assert [job.id for job in world.jobs_on("v1")] == ["7"]
    world.apply(ch.JobSeen(waits, NOW_S + 1))
    assert world.jobs_on("v1") == []
    assert world.job_index.waiting_changes == changes


def calls_of(made: Callable[[], object]) -> int:
    """How many functions are called meanwhile: what it costs, whatever else the machine does."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        made()
    finally:
        sys.setprofile(None)
    return calls


def who_wait(count: int, own: OwnMachines) -> tuple[World, PolicySet]:
    """So many jobs of ann's that ask for machines of their own, and some of bob's after these."""
    world, rules = fleet_of_hosts(20), replace(policies(count, 20), own_machines=own)
    for number in range(1, count + 1):
        user = "ann" if number < count - 9 else "bob"
        asks = Job(
            str(number),
            number,
            "htc",
            JobState.PENDING,
            user=user,
            submit_s=NOW_S + number,
            reason="JobHeldAdmin",
            machines=MachineRequest(held=True),
        )
        world.apply(ch.JobSeen(asks, NOW_S))
    return world, rules


@pytest.mark.parametrize("most_per_user", [0, 3])
def test_jobs_that_wait_for_their_own_machines_are_not_compared_with_each_other(most_per_user: int) -> None:
    """Twice as many that are taken in, and then wait for long, cost twice as much."""
    cost = []
    for count in (200, 400):
        world, rules = who_wait(count, OwnMachines(True, most=8, most_per_user=most_per_user))
        first = calls_of(lambda world=world, rules=rules: enact(world, rules))  # type: ignore[misc]
        assert len(world.machines) == count
        assert sum(bool(own.fleet) for own in world.machines.values()) == 2 * (most_per_user or 4)
        world.apply(ch.Tick(NOW_S + 2 * rules.own_machines.passed_over_s))
        for source in ("slurm", *rules.hosts):
            world.apply(ch.SourceSeen(source, world.now_s))
        world.queue.everything()
        later = calls_of(lambda world=world, rules=rules: plan(world, rules))  # type: ignore[misc]
        cost.append((first, later))
    for few, many in zip(*cost, strict=True):
        assert many <= 2.1 * few


def test_a_host_that_is_busier_concerns_nobody_who_waits_for_his_own_machines() -> None:
    """It carries as much as before; once it carries more, that is another matter."""
    world, rules = who_wait(50, OwnMachines(True, most=1))
    enact(world, rules)
    plan(world, rules)
    host = world.hosts["n0"]
    world.apply(ch.HostSeen(replace(host, busy=0.5), NOW_S))
    assert Entity(Kind.MACHINES, "50") not in world.queue
    world.apply(ch.HostSeen(replace(host, capacity=Resources(2, 512)), NOW_S))
    assert Entity(Kind.MACHINES, "50") in world.queue


def test_each_that_waits_on_a_drained_host_asks_whether_another_one_serves_not_which(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A drained rack with work at its ladder's end, and again and again one of many hosts changes."""
    count, listed = 20, 0
    world = fleet_of_hosts(count + 2)
    ladder = Ladder((RungRule(Rung.PAUSE, for_s=1000.0), RungRule(Rung.REQUEUE)))
    rules = replace(policies(count, count + 2), ladder=ladder)
    drain, stop = frozenset({"DRAIN"}), NodeStop(NOW_S, rung=1, kind=Rung.REQUEUE)
    for number in range(count):
        host, name, job = f"n{number}", f"v{number}", str(number + 1)
        address, tag, held = rules.instances.addresses[number], Tag("c", name, 1), (HeldJob(job, 0),)
        node = ManagedNode(name, address, host, 1, Phase.PARKED, NOW_S, NOW_S, held=held, stop=stop)
        world.apply(ch.NodeManaged(node))
        instance = Instance(name, host, InstanceState.PAUSED, tag, Resources(1, 256))
        world.apply(ch.InstanceSeen(instance, NOW_S))
        world.apply(ch.NodeSeen(Node(host, NodeBase.IDLE, drain, "a rack", cpus=1), NOW_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.MIXED, drain, "backfill: x", cpus=1), NOW_S))
        world.apply(ch.JobSeen(Job(job, number + 1, "htc", JobState.SUSPENDED, nodes=(name,)), NOW_S))
    shut = placement.Rooms.closed

    def counted(self: placement.Rooms, *arguments: Any) -> dict[str, Reason]:
        nonlocal listed
        listed += 1
        return shut(self, *arguments)

    monkeypatch.setattr(placement.Rooms, "closed", counted)

    def told() -> tuple[int, int]:
        """For how many the ladder does not end, and of how many it is said when it will."""
        refusals = plan(world, rules).refusals
        unended = [r for r in refusals if r.wanted is Goal.REQUEUE and r.code is Code.HOST_SHUT]
        texts = [sentence(r.reason) for r in unended]
        return len(texts), sum("once it has been drained for 1000 s" in text for text in texts)

    assert told() == (count, count)
    last, other = f"n{count}", f"n{count + 1}"
    for host, closed, ends in ((last, True, count), (other, True, 0), (last, False, count)):
        world.apply(ch.HoldSet(host, NOW_S, closed, "a test"))
        assert told() == (count, ends)
    assert listed <= 8
