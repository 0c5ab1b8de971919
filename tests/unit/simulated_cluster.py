"""A small simulated cluster for the tests of the simulation itself."""

from __future__ import annotations

from backfill.core.model.cluster import Node
from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.workload import NodeSpec

FLAVOUR = Flavour(cpus=2, memory_mb=1024)


def cluster(manners: Manners | None = None, hosts: int = 2, start_s: float = 1000.0) -> SimulatedWorld:
    """Hosts n1.. of 2 CPUs and 4 GB; partitions `high` (bare metal) and `low` (instances)."""
    world = SimulatedWorld(start_s=start_s, boot_s=5.0, manners=manners)
    world.add_partition("high", tier=10, feature="metal")
    world.add_partition("low", tier=1, feature="virtual")
    for i in range(1, hosts + 1):
        world.add_host(f"n{i}", features=("metal",))
    return world


def spec(name: str = "v1", host: str = "n1", generation: int = 1) -> InstanceSpec:
    number = name.removeprefix("v")
    tag = Tag("sim", name, generation)
    return InstanceSpec(name, host, tag, FLAVOUR, "image", f"10.0.0.{number}/16", ("virtual",))


def join(world: SimulatedWorld, name: str = "v1", host: str = "n1") -> None:
    """A virtual node on `host`, booted and open for jobs."""
    add_node(world, name)
    world.provider.create(spec(name, host))
    world.clock.advance(5.0)
    world.slurm.undrain(name)


def add_node(world: SimulatedWorld, name: str) -> None:
    number = name.removeprefix("v")
    world.slurm.create_node(
        NodeSpec(name, f"10.0.0.{number}", FLAVOUR.cpus, FLAVOUR.node_memory_mb, ("virtual",))
    )


def node(world: SimulatedWorld, name: str) -> Node:
    return world.slurm.read_nodes([name])[name]


def counts(world: SimulatedWorld, job: str, restart: int = 0) -> int:
    return sum(1 for c in world.tally if c.job == job and c.restart == restart)


def busy(world: SimulatedWorld, run_s: float = 60.0, name: str = "v1", host: str = "n1") -> str:
    """A job that has computed for exactly 10 s on a fresh virtual node. Returns its id."""
    join(world, name, host)
    job = world.submit("low", run_s, cpus=2)
    while counts(world, job) < 10:
        world.clock.advance(0.5)
    return job
