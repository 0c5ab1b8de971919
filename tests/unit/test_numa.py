"""NUMA nodes: the rule by which one is chosen, and what placement makes of it."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Flavour, Host, Instance, InstanceState, NumaNode, Tag
from backfill.core.model.lifecycle import ManagedNode, NodeStop, Phase
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.sentences import sentence
from backfill.core.numa import Share, choose, fits, left_on, places, roomiest, usable
from backfill.core.placement import why_not_on
from backfill.core.policies.limits import Limits
from backfill.core.policies.spread import Larger, Spread
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.room import NOTHING_MORE, NodeNeed, crowded, numa_room, places_ever, places_now
from backfill.core.world import World

NOW_S = 1_000_000.0
TWO = (NumaNode(0, 4, 4000), NumaNode(1, 4, 4000))
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",)),
    instances=Template(
        tuple(f"vn{i}" for i in range(1, 9)),
        tuple(f"10.77.1.{i}/16" for i in range(1, 9)),
        Flavour(cpus=3, memory_mb=1000),
    ),
    hosts=("bm1",),
    limits=Limits(max_per_host=8),
)
_ROOMS = st.builds(Resources, st.integers(-4, 16), st.integers(-4, 16))
_LEFT = st.dictionaries(st.integers(0, 5), _ROOMS, max_size=4)
_SHAPES = st.builds(Resources, st.integers(1, 12), st.integers(1, 12))


def told(world: World, policies: PolicySet = POLICIES, need: NodeNeed = NOTHING_MORE) -> str:
    why = why_not_on(world, policies, "bm1", 0.0, need)
    return "" if why is None else sentence(why)


def a_host(numa: tuple[NumaNode, ...] = TWO) -> World:
    """Eight CPUs and 8000 MB, on two NUMA nodes unless told otherwise."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    world.apply(ch.HostSeen(Host("bm1", None, Resources(8, 8000), numa=numa), NOW_S))
    world.apply(ch.SourceSeen("bm1", NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    return world


def add(
    world: World,
    name: str,
    numa: int | None,
    phase: Phase = Phase.READY,
    state: InstanceState = InstanceState.RUNNING,
    flavour: Flavour | None = None,
) -> tuple[ManagedNode, Instance]:
    shape = flavour or POLICIES.instances.flavour
    address = f"10.77.1.{name.removeprefix('vn')}/16"
    node = ManagedNode(name, address, "bm1", 1, phase, NOW_S, NOW_S, flavour=flavour)
    seen = Instance(name, "bm1", state, Tag("c", name, 1), shape.resources, numa=numa)
    world.apply(ch.NodeManaged(node))
    world.apply(ch.InstanceSeen(seen, NOW_S))
    return node, seen


# --- the rule itself -----------------------------------------------------------------------------


def test_what_a_host_keeps_comes_from_all_its_numa_nodes() -> None:
    """In equal parts; a CPU that is left over comes from the first, and CPUs may be promised more often."""
    assert usable(TWO, 1.0, NOTHING) == {0: Resources(4, 4000), 1: Resources(4, 4000)}
    assert usable(TWO, 1.5, Resources(3, 1001)) == {0: Resources(4, 3499), 1: Resources(5, 3499)}
    assert usable((), 1.0, Resources(1, 1)) == {}


def test_an_instance_goes_where_most_cpus_are_left() -> None:
    """Equal ones go by memory, then by number; without memory none is chosen."""
    left = {0: Resources(2, 900), 1: Resources(4, 500), 2: Resources(4, 600)}
    assert roomiest(left, Resources(1, 100)) == 2
    assert roomiest(left, Resources(1, 800)) == 0
    assert roomiest(left, Resources(1, 901)) is None
    assert roomiest({1: Resources(1, 1), 0: Resources(1, 1)}, Resources(1, 1)) == 0


@given(_LEFT, _SHAPES)
def test_whoever_fits_on_one_numa_node_is_never_put_on_another_without_room(
    left: dict[int, Resources], shape: Resources
) -> None:
    """The choice has the memory always, and the CPUs wherever any NUMA node has both."""
    chosen = roomiest(left, shape)
    if chosen is not None:
        assert shape.memory_mb <= left[chosen].memory_mb
    if fits(left, shape):
        assert chosen is not None
        assert shape.fits(left[chosen])
        assert places(left, shape) >= 1


@given(_LEFT, st.lists(st.tuples(_SHAPES, st.none() | st.integers(0, 6)), max_size=6))
def test_nothing_that_is_taken_is_forgotten(
    left: dict[int, Resources], taken: list[tuple[Resources, int | None]]
) -> None:
    """Bound or not, known or not: the sum over all NUMA nodes is less by just what was taken."""
    after = left_on(left, [Share(shape, node) for shape, node in taken])
    if left:
        before = sum(left.values(), NOTHING) - sum((shape for shape, _ in taken), NOTHING)
        assert sum(after.values(), NOTHING) == before


@given(_LEFT, st.lists(_SHAPES, min_size=1, max_size=5))
def test_as_many_fit_as_are_counted(left: dict[int, Resources], shapes: list[Resources]) -> None:
    """So many of one shape can be put one after the other, and then no further one."""
    shape = shapes[0]
    for _ in range(places(left, shape)):
        chosen = roomiest(left, shape)
        assert chosen is not None
        assert shape.fits(left[chosen])
        left = {**left, chosen: left[chosen] - shape}
    assert not fits(left, shape)


def test_one_that_stands_still_counts_only_where_there_is_a_choice() -> None:
    """Its CPUs are its own as long as another NUMA node has some; its memory always is."""
    whole = usable(TWO, 1.0, NOTHING)
    still = Instance("vn1", "bm1", InstanceState.PAUSED, Tag("c", "vn1", 1), Resources(4, 1000), numa=0)
    busy = replace(still, name="vn2", state=InstanceState.RUNNING, numa=1)
    assert choose(whole, [still], Resources(4, 1000)) == 1
    assert choose(whole, [still, busy], Resources(4, 1000)) == 0
    assert choose(whole, [still, busy], Resources(4, 3001)) is None
    on_disk = replace(still, state=InstanceState.SUSPENDED)
    assert choose(whole, [on_disk, busy], Resources(4, 4000)) == 0


# --- placement -----------------------------------------------------------------------------------


def test_room_that_is_spread_over_numa_nodes_is_none_for_one_that_is_bound() -> None:
    """Two CPUs are free in all, one on each: nothing is split, and the refusal says why."""
    world = a_host()
    for name, numa in (("vn1", 0), ("vn2", 1)):
        add(world, name, numa)
    small = NodeNeed(shape=Resources(2, 100))
    assert told(world, need=small) == "no NUMA node of bm1 has 2 CPUs and 100 MB left"
    assert told(world, need=NodeNeed(shape=Resources(1, 100))) == ""
    assert places_now(world, "bm1", POLICIES, Resources(1, 100)) == 2
    assert places_now(world, "bm1", POLICIES, Resources(2, 100)) == 0
    unbound = a_host(())
    for name in ("vn1", "vn2"):
        add(unbound, name, None)
    assert told(unbound, need=small) == ""
    assert places_now(unbound, "bm1", POLICIES, Resources(2, 100)) == 1


def test_one_that_is_being_made_counts_where_it_will_be() -> None:
    """Nobody has seen it yet: it is reckoned where the driver would put it now."""
    world = a_host()
    add(world, "vn1", 0)
    world.apply(ch.NodeManaged(ManagedNode("vn2", "10.77.1.2/16", "bm1", 1, Phase.BOOTING, NOW_S, NOW_S)))
    assert numa_room(world, "bm1", POLICIES) == {0: Resources(1, 3000), 1: Resources(1, 3000)}


def test_one_that_stands_still_keeps_its_memory_and_takes_its_cpus_back_there() -> None:
    """Elsewhere on its host there are CPUs, which are of no use to it; on disk it may use them."""
    world = a_host()
    stopped, paused = add(world, "vn1", 0, Phase.PARKED, InstanceState.PAUSED)
    add(world, "vn2", 0, flavour=Flavour(cpus=2, memory_mb=500))
    assert numa_room(world, "bm1", POLICIES, kept=False) == {0: Resources(2, 2500), 1: Resources(4, 4000)}
    why = crowded(world, stopped, paused, POLICIES)
    assert why is not None
    assert sentence(why) == "no NUMA node of bm1 has 3 CPUs and 1000 MB left"
    on_disk = replace(paused, state=InstanceState.SUSPENDED, numa=None)
    world.apply(ch.InstanceSeen(on_disk, NOW_S))
    assert crowded(world, stopped, on_disk, POLICIES) is None


def test_one_that_is_larger_than_every_numa_node_is_refused_or_spans_them() -> None:
    """As policy says. What exists already is never locked out of its own host."""
    world, large = a_host(), Resources(6, 1000)
    need = NodeNeed(shape=large)
    assert told(world, need=need) == (
        "no NUMA node of bm1 can have 6 CPUs and 1000 MB for instances (placement.larger_than_numa)"
    )
    assert places_ever(world, POLICIES, "bm1", large) == 0
    spanning = replace(POLICIES, placement=Spread(larger_than_numa=Larger.SPAN))
    assert told(world, spanning, need) == ""
    assert places_ever(world, spanning, "bm1", large) == 1
    assert places_ever(world, POLICIES, "bm1", Resources(3, 100)) == 2
    stopped, paused = add(
        world, "vn1", None, Phase.PARKED, InstanceState.SUSPENDED, Flavour(cpus=6, memory_mb=1000)
    )
    assert crowded(world, stopped, paused, POLICIES) is None


def test_one_that_spans_takes_its_part_of_each() -> None:
    """What is left on none of them is promised twice."""
    world = a_host()
    add(world, "vn1", None, flavour=Flavour(cpus=6, memory_mb=5000))
    left = numa_room(world, "bm1", POLICIES)
    assert left == {0: Resources(0, 0), 1: Resources(2, 3000)}
    assert told(world) == "bm1 has 2 CPUs and 3000 MB left, an instance takes 3 CPUs and 1000 MB"


def test_a_host_keeps_its_own_and_a_moving_one_is_reckoned_at_its_target() -> None:
    """Both are taken from what its NUMA nodes have."""
    world = a_host()
    rules = replace(POLICIES, limits=Limits(max_per_host=8, keep_cpus=2, keep_memory_mb=1000))
    assert numa_room(world, "bm1", rules) == {0: Resources(3, 3500), 1: Resources(3, 3500)}
    stop = NodeStop(NOW_S, target="bm1")
    moving = ManagedNode("vn1", "10.77.1.1/16", "bm2", 1, Phase.MOVING, NOW_S, NOW_S, stop=stop)
    world.apply(ch.NodeManaged(moving))
    assert numa_room(world, "bm1", rules) == {0: Resources(0, 2500), 1: Resources(3, 3500)}
