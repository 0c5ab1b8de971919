"""All policies together: what `plan` decides by."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from backfill.core.model.fleet import Flavour, Instance
from backfill.core.model.keys import Option, about, key
from backfill.core.model.lifecycle import ManagedNode
from backfill.core.policies.access import Roles
from backfill.core.policies.budgets import Budgets
from backfill.core.policies.checkpoints import Checkpoints
from backfill.core.policies.cloning import Cloning
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.demand import Demand
from backfill.core.policies.devices import Devices
from backfill.core.policies.disk_queue import DiskQueue
from backfill.core.policies.environments import Environments
from backfill.core.policies.gaps import Gaps
from backfill.core.policies.ladder import Ladder
from backfill.core.policies.limits import Limits
from backfill.core.policies.liveness import Liveness
from backfill.core.policies.notice import Notice
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.quotas import Quotas
from backfill.core.policies.readiness import Readiness
from backfill.core.policies.saving import Saving
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Spread
from backfill.core.policies.supply import Supply
from backfill.core.policies.unsuspendable import Unsuspendable
from backfill.core.policies.victims import Victims
from backfill.core.policies.workloads import Workloads


class Proof(Option):
    """What must be seen on the hypervisor before a host counts as given back."""

    CPU = "cpu", "no instance runs"
    MEMORY = "memory", "no instance holds memory either"


@dataclass(frozen=True, slots=True)
class Template:
    """What our instances are. `names` and `addresses` pair up: the first name has the first."""

    names: tuple[str, ...] = field(metadata=about("Names of our nodes.", form="hostlist"))
    addresses: tuple[str, ...] = field(
        metadata=about("Their addresses, in the same order.", form="addresses")
    )
    flavour: Flavour
    image: str = key("default", "The image they boot, from the catalogue or from Glance.", form="name")
    features: tuple[str, ...] = key(
        ("backfill",), "Features of our nodes in Slurm; partitions select them by a NodeSet.", form="name"
    )

    def flavour_of(self, node: ManagedNode) -> Flavour:
        """Return the shape of a node's instance: that with which it was made, where its record has it."""
        return node.flavour or self.flavour

    def promised_by(self, node: ManagedNode, instance: Instance | None) -> Flavour:
        """Return the shape to which a node is held: that of its record, not of today's policy file.

        An old record has none: then it is no more than what its instance was given.
        """
        if node.flavour is not None or instance is None:
            return self.flavour_of(node)
        given, usual = instance.resources, self.flavour
        cpus, memory_mb = min(usual.cpus, given.cpus), min(usual.memory_mb, given.memory_mb)
        return replace(usual, cpus=cpus, memory_mb=memory_mb)


@dataclass(frozen=True, slots=True)
class Priorities:
    """Whose waiting jobs are worth instances, and whose never are. Any job to which Slurm gives a
    host's own node pushes the instances there aside, whatever its partition.
    """

    low: tuple[str, ...] = field(
        metadata=about(
            "Partitions whose waiting jobs run on instances, where they can be pushed aside.", form="name"
        )
    )
    high: tuple[str, ...] = key(
        (), "Partitions whose jobs never run on instances, whatever their QOS.", form="name"
    )
    low_qos: tuple[str, ...] = key(
        (), "A waiting job of any other partition also counts as low if its QOS is one of these."
    )


@dataclass(frozen=True, slots=True)
class PolicySet:
    """One checked policy file, as values."""

    cluster: str = field(
        metadata=about("ClusterName of this Slurm; every instance carries it as a mark.", form="name")
    )
    priorities: Priorities
    instances: Template
    hosts: tuple[str, ...]  # in the order of the file
    ladder: Ladder = field(default_factory=Ladder)
    workloads: Workloads = field(default_factory=Workloads)
    supply: Supply = field(default_factory=Supply)
    demand: Demand = field(default_factory=Demand)
    scale: Scale = field(default_factory=Scale)
    comeback: Comeback = field(default_factory=Comeback)
    unsuspendable: Unsuspendable = field(default_factory=Unsuspendable)
    cloning: Cloning = field(default_factory=Cloning)
    placement: Spread = field(default_factory=Spread)
    readiness: Readiness = field(default_factory=Readiness)
    victims: Victims = field(default_factory=Victims)
    gaps: Gaps = field(default_factory=Gaps)
    budgets: Budgets = field(default_factory=Budgets)
    quotas: Quotas = field(default_factory=Quotas)
    environments: Environments = field(default_factory=Environments)
    own_machines: OwnMachines = field(default_factory=OwnMachines)
    devices: Devices = field(default_factory=Devices)
    notice: Notice = field(default_factory=Notice)
    liveness: Liveness = field(default_factory=Liveness)
    limits: Limits = field(default_factory=Limits)
    disk_queue: DiskQueue = field(default_factory=DiskQueue)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    saving: Saving = field(default_factory=Saving)
    access: Roles = field(default_factory=Roles)
    proof: Proof = Proof.CPU
    answer_within_s: float = key(
        1.5, "Seconds after which a hook that still waits is told that the room is not free."
    )

    def name_reserved(self, name: str, image: str, network: str = "") -> bool:
        """Return True if a node of this name is for other images, or for other networks."""
        return self.environments.reserved(name, image) or self.own_machines.reserved(name, network)

    def ladder_of(self, workload: str) -> Ladder:
        """Return the ladder of a workload's jobs, by its name; of all others where it has none."""
        if not workload:
            return self.ladder
        return self.workloads.ladder(workload, self.ladder, to_disk=self.proof is Proof.MEMORY)

    @property
    def longest_stop_s(self) -> float | None:
        """The longest time that an instance may stand still by any ladder, seconds; None: without limit."""
        ladders = {self.ladder_of(one.name) for one in self.workloads.entries}
        stops = [ladder.longest_stop_s for ladder in {self.ladder, *ladders}]
        return None if None in stops else max(stop for stop in stops if stop is not None)
