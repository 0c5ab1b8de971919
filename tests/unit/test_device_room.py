"""What is left of a host's devices and memory, as placement reckons it."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.devices import Sharing
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.placement import why_not_on
from backfill.core.policies.devices import DeviceRule, Devices
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.room import NodeNeed, functions_of, need_of, room
from backfill.core.world import World

NOW_S = 1_000_000.0
VF, PAIR = DeviceRule("vf", 1), DeviceRule("pair", 2)
SHM = DeviceRule("shm", region_mb=64, sharing=Sharing.ANYONE)
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",)),
    instances=Template(
        tuple(f"vn{i}" for i in range(1, 5)),
        tuple(f"10.77.1.{i}/16" for i in range(1, 5)),
        Flavour(cpus=1, memory_mb=256),
    ),
    hosts=("bm1", "bm2"),
    devices=Devices((VF, PAIR, SHM)),
)


def two_hosts() -> World:
    """One has three virtual functions, the other none."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    for name, functions in (("bm1", 3), ("bm2", 0)):
        host = Host(name, name, Resources(8, 8000), functions=functions)
        world.apply(ch.HostSeen(host, NOW_S))
        world.apply(ch.NodeSeen(Node(name, NodeBase.IDLE, cpus=8), NOW_S))
        world.apply(ch.SourceSeen(name, NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    return world


def add(
    world: World, name: str, offers: tuple[str, ...] = (), host: str = "bm1", **instance: object
) -> ManagedNode:
    """A ready node with its instance."""
    address = f"10.77.1.{name.removeprefix('vn')}/16"
    node = ManagedNode(name, address, host, 1, Phase.READY, NOW_S, NOW_S, devices=offers)
    world.apply(ch.NodeManaged(node))
    seen = Instance(name, host, InstanceState.RUNNING, Tag("c", name, 1), Resources(1, 256))
    world.apply(ch.InstanceSeen(replace(seen, **instance), NOW_S))  # type: ignore[arg-type]
    return node


def barred(world: World, need: NodeNeed, policies: PolicySet = POLICIES) -> dict[str, Reason]:
    """Hosts to which nobody may come who needs that, and why."""
    found = {host: why_not_on(world, policies, host, 0.0, need) for host in policies.hosts}
    return {host: why for host, why in found.items() if why is not None}


def open_to(world: World, functions: int) -> dict[str, Reason]:
    """Hosts that cannot give so many functions, and why."""
    return barred(world, NodeNeed(functions))


def test_functions_are_spoken_for_by_what_is_offered_and_by_what_is_held() -> None:
    """A node offers its functions to one job at a time, and may hold more than it offers."""
    world = two_hosts()
    add(world, "vn1", ("vf",))
    assert list(open_to(world, 2)) == ["bm2"]
    few = sentence(open_to(world, 3)["bm1"])
    assert few == "bm1 has 2 of 3 virtual functions for others, 3 are needed"
    add(world, "vn2", (), devices_of="7", functions=2)
    assert "0 of 3" in sentence(open_to(world, 1)["bm1"])
    assert open_to(world, 0) == {}


def test_what_is_for_one_job_does_not_move_to_where_another_job_has_some() -> None:
    """Its fellow of the same job is no other, and memory is as exclusive as a function."""
    own = replace(POLICIES, devices=Devices((replace(SHM, sharing=Sharing.ONE_JOB),)))
    world = two_hosts()
    moving = add(world, "vn1", ("shm",), devices_of="7", region_mb=64)
    need = need_of(world, own, moving)
    assert need == NodeNeed(region_mb=64, sharing=Sharing.ONE_JOB, job="7")
    add(world, "vn2", ("shm",), devices_of="7", region_mb=64, host="bm2")
    assert "bm2" not in barred(world, need, own)
    add(world, "vn3", ("shm",), host="bm2")
    why = barred(world, need, own)["bm2"]
    assert why == because(Code.DEVICES_ONE_JOB, host="bm2", node="vn3")
    assert "bm2" not in barred(world, NodeNeed(), own)


def test_a_node_that_goes_speaks_only_for_what_it_still_holds() -> None:
    """What it offered is for others as soon as it goes."""
    world = two_hosts()
    node = add(world, "vn1", ("pair",))
    assert functions_of(world, POLICIES, "bm1", node) == 2
    gone = replace(node, phase=Phase.REMOVING)
    world.apply(ch.NodeManaged(gone))
    assert functions_of(world, POLICIES, "bm1", gone) == 0
    assert list(open_to(world, 3)) == ["bm2"]


def test_a_region_takes_memory_of_its_host_once() -> None:
    """The instances of one job share it."""
    world = two_hosts()
    for name in ("vn1", "vn2"):
        add(world, name)
    before = room(world, "bm1", POLICIES)
    for name in ("vn1", "vn2"):
        add(world, name, devices_of="7", region_mb=64)
    assert room(world, "bm1", POLICIES) == before - Resources(0, 64)


def test_a_region_goes_only_where_there_is_memory_for_it() -> None:
    """Beside the instance itself; none more where the job's other instances share it already."""
    world = two_hosts()
    need = NodeNeed(region_mb=7745, job="7")
    (why, _) = barred(world, need).values()
    assert sentence(why) == "bm1 has 7744 MB left, 7745 MB are to be shared there"
    assert barred(world, replace(need, region_mb=7744)) == {}
    add(world, "vn1", devices_of="7", region_mb=64)
    assert list(barred(world, need)) == ["bm2"]


def test_what_a_node_offers() -> None:
    """Memory that anybody shares always; what is for one job, where the node is for such jobs."""
    assert POLICIES.devices.offered(()) == ("shm",)
    assert POLICIES.devices.offered(("vf",)) == ("vf", "shm")
    assert not Devices((SHM,)).scarce
    assert Devices((replace(SHM, sharing=Sharing.ONE_OWNER),)).offered(()) == ()
