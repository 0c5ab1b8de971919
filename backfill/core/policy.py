"""All policies together: what `plan` decides by."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from backfill.core.fleet import Flavour
from backfill.core.guards import Limits
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
from backfill.core.policies.liveness import Liveness
from backfill.core.policies.notice import Notice
from backfill.core.policies.quotas import Quotas
from backfill.core.policies.readiness import Readiness
from backfill.core.policies.saving import Saving
from backfill.core.policies.scale import Scale
from backfill.core.policies.spread import Spread
from backfill.core.policies.unsuspendable import Unsuspendable
from backfill.core.policies.victims import Victims


class Proof(StrEnum):
    """What must be seen on the hypervisor before a host counts as given back."""

    CPU = "cpu"  # no instance runs
    MEMORY = "memory"  # no instance holds memory either


@dataclass(frozen=True, slots=True)
class Template:
    """What our instances are. `names` and `addresses` pair up: the first name has the first."""

    names: tuple[str, ...]
    addresses: tuple[str, ...]  # CIDR
    flavour: Flavour
    image: str = "default"
    features: tuple[str, ...] = ("backfill",)


@dataclass(frozen=True, slots=True)
class Priorities:
    """Whose waiting jobs are worth instances, and whose never are.

    Any job to which Slurm gives a host's own node pushes the instances there aside, whatever its
    partition: it has the hardware.
    """

    # Partitions whose waiting jobs are run on instances.
    low: tuple[str, ...]
    # Partitions whose jobs never are, whatever their QOS.
    high: tuple[str, ...] = ()
    # A waiting job of any other partition counts as low, too, if its QOS is one of these.
    low_qos: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicySet:
    """One checked policy file, as values."""

    cluster: str
    priorities: Priorities
    instances: Template
    hosts: tuple[str, ...]  # in the order of the file
    ladder: Ladder = field(default_factory=Ladder)
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
    devices: Devices = field(default_factory=Devices)
    notice: Notice = field(default_factory=Notice)
    liveness: Liveness = field(default_factory=Liveness)
    limits: Limits = field(default_factory=Limits)
    disk_queue: DiskQueue = field(default_factory=DiskQueue)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    saving: Saving = field(default_factory=Saving)
    proof: Proof = Proof.CPU
    # Seconds after which a hook that still waits is told that the room is not free.
    answer_within_s: float = 1.5
