"""Own machines: which jobs get instances of their own, how many, and what becomes of those that cannot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Flavour
from backfill.core.model.keys import Option, about, key
from backfill.core.model.refusals import Code, Reason, because

_NAMES = re.compile(r"[A-Za-z0-9_.-]+")


class Hopeless(Option):
    """What happens to a job whose machines can never exist, or have failed too often."""

    HOLD = "hold", "it stays held, and its AdminComment says why; `scontrol release` tries again"
    CANCEL = "cancel", "it is cancelled, with the reason in its AdminComment"


@dataclass(frozen=True, slots=True)
class MachineNetwork:
    """A network that a job may ask for by its name. Its machines must reach the controller there."""

    name: str = field(metadata=about("The name, as in sbatch --vm-network.", form="name"))
    bridge: str = key(
        "", "The libvirt hosts' bridge into it; empty: no machine there can have it.", form="name"
    )
    cloud: str = key("", "Its name or id in OpenStack; empty: no machine there can have it.")
    nodes: tuple[str, ...] = key(
        (),
        "Names of instances.names that only machines in this network get, because their addresses are "
        "its; empty: any name.",
        form="hostlist",
    )
    users: tuple[str, ...] = key((), "Who may ask for it; with neither users nor accounts everybody may.")
    accounts: tuple[str, ...] = key((), "Accounts whose members may.")

    @property
    def allowed(self) -> tuple[str, ...]:
        """Name those who may; empty: everybody."""
        return (*(f"user {name}" for name in self.users), *(f"account {name}" for name in self.accounts))

    def refuses(self, user: str, account: str) -> bool:
        """Return True if the job's owner is none of those who may have it."""
        return bool(self.allowed) and user not in self.users and account not in self.accounts


@dataclass(frozen=True, slots=True)
class OwnMachines:
    """A job's own virtual cluster: made for it, pinned to it, and removed with it."""

    enabled: bool = key(
        False, "Jobs may have machines of their own, by the word in their comment or as below."
    )
    partitions: tuple[str, ...] = key(
        (),
        "Partitions whose jobs all get machines of their own, with the job's CPUs and memory.",
        form="name",
    )
    constraint: str = key(
        "",
        "The feature by which jobs of low partitions ask for them, such as own-vm. Slurm must know it.",
        form="name",
    )
    inside: tuple[str, ...] = key(
        (),
        "Partitions of bare-metal nodes whose jobs may have machines on the nodes that they got, by the word "
        "in their comment.",
        form="name",
    )
    networks: tuple[MachineNetwork, ...] = key((), "Networks that jobs may ask for, one entry for each.")
    most: int = key(64, "How many machines may belong to jobs at the same time.")
    most_per_user: int = key(0, "How many may belong to the jobs of one user; 0: as many as to all.")
    most_disk_gb: int = key(
        20,
        "How large a disk a job may ask for, since its user can fill it. One as large as that of "
        "`instances.flavour` it may always have.",
    )
    respawns: int = key(2, "How often all of them are made again if one fails before its job began.", least=0)
    passed_over_s: float = key(
        600.0,
        "How long later jobs may pass a job whose machines find no room. After that none may, unless hosts "
        "that it needs are away for longer than this.",
    )
    start_within_s: float = key(
        300.0, "A released job must begin within this time; otherwise its machines go and it waits."
    )
    hopeless: Hopeless = key(
        Hopeless.HOLD, "What happens to a job whose machines can never exist, or have failed too often."
    )

    def asks(self, job: Job, *, low: bool) -> bool:
        """Return True if the job is to have machines of its own. `low`: its partition or QOS is low."""
        if not self.enabled or job.partition in self.inside:
            return False
        if job.partition in self.partitions:
            return True
        by_word = job.machines is not None or job.machines_fault is not None
        return low and (by_word or bool(self.constraint and self.constraint in _NAMES.findall(job.features)))

    def network_refusal(self, name: str, job: Job) -> Reason | None:
        """Return why the job may not have the network of this name, if it may not; empty: the usual one."""
        if not name:
            return None
        known = next((network for network in self.networks if network.name == name), None)
        if known is None:
            every = tuple(network.name for network in self.networks)
            return because(Code.MACHINES_NETWORK, network=name, networks=every)
        if not known.refuses(job.user, job.account):
            return None
        user, account = job.user, job.account or "(none)"
        code, allowed = Code.NETWORK_OF_OTHERS, known.allowed
        return because(code, network=name, user=user, account=account, allowed=allowed)

    def largest_disk_gb(self, usual: Flavour) -> int:
        """Return how large a disk a job may ask for: never less than all instances have."""
        return max(self.most_disk_gb, usual.disk_gb)

    def disk_refusal(self, disk_gb: float | None, usual: Flavour) -> Reason | None:
        """Return why the job may not have a disk of this size, if it may not; None: the usual one."""
        most_gb = self.largest_disk_gb(usual)
        if disk_gb is None or disk_gb <= most_gb:
            return None
        return because(Code.MACHINES_DISK, disk_gb=disk_gb, most_gb=most_gb)

    def reserved(self, node: str, network: str) -> bool:
        """Return True if a node of this name is for machines in other networks than this."""
        own = next((entry.nodes for entry in self.networks if entry.name == network), ())
        if own:
            return node not in own
        return any(node in entry.nodes for entry in self.networks)

    def asks_inside(self, job: Job) -> bool:
        """Return True if the job is to have machines on the nodes that it got."""
        if not self.enabled or job.partition not in self.inside:
            return False
        return job.machines is not None or job.machines_fault is not None

    @property
    def features(self) -> tuple[str, ...]:
        """What jobs ask for by a constraint; their machines have it."""
        return (self.constraint,) if self.enabled and self.constraint else ()
