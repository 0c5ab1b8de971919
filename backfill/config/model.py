"""The checked policy file as frozen values. Field names are the file's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from backfill.config.cloud import OpenStackEntry
from backfill.config.images import ImageEntry
from backfill.core.model.keys import Option, about, key
from backfill.core.policy import PolicySet


class Provider(StrEnum):
    """The drivers that can look after a host."""

    LIBVIRT = "libvirt"
    OPENSTACK = "openstack"
    SIMULATED = "simulated"


class DomainType(Option):
    """Ways of running a guest's CPUs."""

    KVM = "kvm"
    QEMU = "qemu", "in software"


class Bind(Option):
    """What an instance is bound to on its host."""

    NONE = "none", "nothing: it may use the whole host"
    NODE = "node", "one NUMA node, which the host's libvirt tells of"


class NumaMemory(Option):
    """How firmly an instance's memory is bound to its NUMA node."""

    PREFERRED = "preferred", "from there while there is some, else from another"
    STRICT = "strict", "only from there: where other programs fill it, the kernel may end an instance"


class RegistrationKind(Option):
    """Ways of making our nodes known to Slurm."""

    DYNAMIC = "dynamic", "added while slurmctld runs"
    CONF = "conf", "a line of the managed file"
    CLOUD = "cloud", "a State=CLOUD line of the managed file"


class ReadKind(Option):
    """Ways of reading nodes and jobs."""

    AUTO = "auto", "as text, the fastest; as JSON if the text cannot be read"
    TEXT = "text", "columns of squeue and scontrol"
    JSON = "json", "squeue and scontrol with --json"
    REST = "rest", "jobs from slurmrestd at rest_socket"
    PYSLURM = "pyslurm", "jobs through pyslurm, in its own process"


class HookPlaceKind(Option):
    """Places where Slurm can call the hook."""

    SLURMCTLD = "slurmctld", "PrologSlurmctld and EpilogSlurmctld"
    HOST = "host", "Prolog and Epilog of each host's slurmd"


@dataclass(frozen=True, slots=True)
class TokensEntry:
    """How the daemon verifies tokens of `scontrol token` (auth/jwt). Without a key none is accepted."""

    jwt_key: str = key(
        "", "The key of slurm.conf's AuthAltParameters=jwt_key, closed to others on the machine.", form="path"
    )
    jwks: str = key("", "The set of public keys of AuthAltParameters=jwks.", form="path")
    user_claim: str = key("sun", "Which claim of a token names its user.", form="name")


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """How the daemon itself runs."""

    state_dir: str = key("/var/lib/backfill", "Where the journal is kept.", form="path")
    journal_keep_s: float = key(
        2_592_000.0, "How long the journal keeps history; what a restarted daemon needs is kept for ever."
    )
    socket: str = key(
        "/run/backfill/daemon.sock",
        "The local socket for the command line and for hooks on this machine.",
        form="path",
    )
    listen: str = key("", "Address and port for hooks on other machines; empty: none.", form="endpoint")
    poll_s: float = key(
        2.0,
        "How often Slurm is read when nothing happens. After 15 s without a reading nothing counts as seen, "
        "so more than 10 s is too much.",
    )
    host_poll_s: float = key(5.0, "How often each host is read when nothing happens.")
    watch_s: float = key(0.03, "How often a node or host is read while the daemon waits for something there.")
    policy_s: float = key(
        5.0, "How often this file is checked; a valid new one is adopted. 0: only on request.", least=0
    )
    full_pass_s: float = key(
        30.0, "How often a plan looks at everything, not only at what has changed. 0: never.", least=0
    )
    workers: int = key(
        16,
        "Number of threads in each pool: evictions, long actions, all others, and readings, "
        "for Slurm and for each provider.",
        most=1024,
    )
    tokens: TokensEntry = field(default_factory=TokensEntry, metadata=about("Tokens of users."))


@dataclass(frozen=True, slots=True)
class HooksEntry:
    """What `backfill slurm hooks install` installs."""

    place: HookPlaceKind = key(HookPlaceKind.SLURMCTLD, "Where Slurm calls the hook.")
    directory: str = key(
        "/usr/local/lib/backfill",
        "The directory of the programs; with place: host, the same on the controller and every host.",
        form="path",
    )
    log: str = key(
        "/var/log/slurm/backfill-hook.log",
        "The hooks' log; Slurm's user must be able to write there.",
        form="path",
    )
    margin_s: float = key(
        1.5,
        "How much longer than answer_within_s a hook waits: no job is ever held longer than both.",
        most=60,
    )
    arrival: bool = key(True, "Tell the daemon at once when a job is submitted, by job_submit.lua.")


@dataclass(frozen=True, slots=True)
class SlurmSettingsFile:
    """Where Slurm is, and how we change its configuration."""

    conf: str = key(
        "/etc/slurm/slurm.conf", "The configuration that scontrol and the other tools use.", form="path"
    )
    bin_dir: str = key("", "Directory of scontrol, squeue and sinfo; empty: as PATH says.", form="path")
    timeout_s: float = key(10.0, "A Slurm command that takes longer has failed.")
    read: ReadKind = key(
        ReadKind.AUTO,
        "How nodes and jobs are read. If a way fails, text is used and the way is tried again in a minute.",
    )
    rest_socket: str = key(
        "", "The local socket of a slurmrestd that admits the daemon's user; for read: rest.", form="path"
    )
    pyslurm_python: str = key(
        "/usr/bin/python3",
        "A Python that has pyslurm, of slurmctld's release or the one before; for read: pyslurm.",
        form="path",
    )
    registration: RegistrationKind = key(RegistrationKind.DYNAMIC, "How our nodes are made known to Slurm.")
    include: str = key(
        "backfill.conf",
        "Our own file beside slurm.conf, which slurm.conf includes; nothing else is ever written.",
        form="name",
    )
    restart: tuple[str, ...] = key(
        (),
        "The command that restarts slurmctld, as a list of words, for the few changes that "
        "an old release accepts only this way; empty: it is never restarted.",
    )
    health_s: float = key(20.0, "How soon after a reload slurmctld, all nodes and all jobs must be back.")
    hooks: HooksEntry = field(default_factory=HooksEntry, metadata=about("Hooks."))


@dataclass(frozen=True, slots=True)
class HostEntry:
    """A machine that carries instances."""

    name: str = field(metadata=about("Its name here and in messages.", form="name"))
    provider: Provider = field(metadata=about("The driver that manages it."))
    node: str | None = key(
        "",
        "Its own Slurm node; by default the same name; null for a host that is not a Slurm node.",
        form="name",
    )
    uri: str = key("", "Its libvirt address, such as qemu+tcp://10.0.0.11/system.", form="uri")
    directory: str = key(
        "",
        "For libvirt: its own directory for instances, at the same path on the daemon's "
        "machine; hosts with equal directories share it. Empty: libvirt.directory, which the "
        "other hosts share.",
        form="path",
    )
    cloud: str = key(
        "", "Its entry in clouds.yaml: for provider openstack, where a host is a whole project.", form="name"
    )
    compute: str = key(
        "",
        "Nova's name of one compute host, if the host is only that; needs an administrator's credential.",
        form="name",
    )
    keep_cpus: int = key(0, "CPUs that instances never take on this host, on top of limits.keep_cpus.")
    keep_memory_mb: int = key(
        0, "Memory that instances never take on this host, on top of limits.keep_memory_mb."
    )

    def __post_init__(self) -> None:
        if self.node == "":
            object.__setattr__(self, "node", self.name)


@dataclass(frozen=True, slots=True)
class SurroundingsEntry:
    """What every guest is told when it boots."""

    controller: str = field(metadata=about("The controller's address.", form="ip"))
    conf_server: str = field(
        metadata=about(
            "Where slurmd gets its configuration: address and port of slurmctld; of several controllers all, "
            "separated by commas, the primary first.",
            form="endpoints",
        )
    )
    munge_key: str = key("", "The cluster's munge key, on the daemon's machine.", form="path")
    gateway: str = key("", "Default route; empty: none.", form="ip")
    slurmd_options: str = key(
        "-Z", "Options for the guest's slurmd; -Z is left out unless slurm.registration is dynamic."
    )
    no_ops: tuple[str, ...] = key(
        (),
        "Programs that slurm.conf names for every slurmd and that guests do not need: they "
        "become programs that do nothing there. Those of slurm.hooks with place: host need "
        "not be listed.",
        form="path",
    )
    time_server: str = key(
        "",
        "The time server that guests follow and prove their clocks against; empty: the "
        "daemon's own clock, passed on by the guest agent.",
        form="ip",
    )
    mounts: tuple[str, ...] = key(
        (),
        'Network file systems that guests mount, each as in fstab: "10.0.0.1:/home /home nfs4 '
        'rw,hard,vers=4.1".',
        form="mount",
    )
    slurm_key: str = key(
        "",
        "Instead of munge_key, if AuthType is auth/slurm: Slurm's key on the daemon's "
        "machine, a file named slurm.key, or slurm.jwks, which allows keys to be changed.",
        form="path",
    )


@dataclass(frozen=True, slots=True)
class HardwareEntry:
    """The virtual machine's fixed parts; the same on all hosts, so that instances can move."""

    domain_type: DomainType = key(DomainType.KVM, "How its CPUs are run.")
    machine: str = key("q35", "The machine type, as QEMU names it.")
    cpu_model: str = key("qemu64", "A model that libvirt knows, or a mode such as host-model.")
    cpu_features: tuple[str, ...] = key(
        (), "Features to add to the model. Without rdrand a guest waits a second for randomness at boot."
    )
    cpu_shares: int | None = key(
        2, "CPU weight relative to everything else on the host; null: not set.", least=2, most=262144
    )
    disk_cache: str = key(
        "none", "Disk cache mode; other than none or directsync only if all hosts are one machine."
    )
    balloon: bool = key(
        False, "A balloon, with which an instance can give memory back; never in instant clones."
    )
    translation_cache_mb: int = key(
        64,
        "Without KVM: how much of the host's memory, MiB, an instance's translated code may "
        "use. Code that does not fit is translated over and over: Salt needs 512. A clone "
        "has half.",
        least=16,
        most=2048,
    )


@dataclass(frozen=True, slots=True)
class GuestNetworkEntry:
    """Whom guests may talk to."""

    closed: bool = key(
        False,
        "Guests reach only the controller, each other, and the time and file servers of "
        "surroundings, and only these reach guests: the hosts' libvirt filters their network "
        "cards (`virsh nwfilter-list`).",
    )
    also: tuple[str, ...] = key(
        (),
        "Further addresses and networks that closed guests may reach, such as directory "
        "servers and machines on which users run srun.",
        form="network",
    )


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long one call to libvirt may take before its outcome counts as unknown."""

    connect_s: float = key(10.0, "opening the connection")
    call_s: float = key(20.0, "an ordinary call")
    start_s: float = key(60.0, "starting an instance")
    long_s: float = key(900.0, "writing memory to disk, reading it back, moving an instance")
    agent_s: float = key(10.0, "a call to the guest agent")
    keepalive_s: int = key(
        5, "A host that is silent for keepalive_s, keepalive_count times, loses its connection."
    )
    keepalive_count: int = key(
        3, "A host that is silent for keepalive_s, keepalive_count times, loses its connection."
    )
    stuck_calls: int = key(
        16, "With this many timed-out calls to one host still hanging, further ones fail at once."
    )


@dataclass(frozen=True, slots=True)
class MovesEntry:
    """How an instance may move to another host with its memory."""

    bandwidth_mb_s: int | None = key(
        None, "MiB per second that one move may use; null: no limit.", least=1, unit=""
    )
    within_s: float = key(
        300.0, "A move that takes longer is cancelled, and the instance continues where it was."
    )
    post_copy_after_s: float | None = key(
        None,
        "After this time the instance continues at the target and fetches the rest over the "
        "network. This ends every move, but the instance is lost if the network breaks "
        "meanwhile. Null: never. If QEMU is not root, the hosts need "
        "`vm.unprivileged_userfaultfd=1`, or these moves are refused.",
    )
    turn_s: float = key(120.0, "How long one move waits for others between the same two hosts.")
    live: bool | None = key(
        None,
        "Let a running instance run while its memory is sent; null: only with "
        "hardware.domain_type kvm, because software emulation loses data written at the "
        "wrong moment.",
    )


@dataclass(frozen=True, slots=True)
class NumaEntry:
    """Whether instances keep to one NUMA node of their host. One that is larger than all of them is
    refused, or bound to none, as placement.larger_than_numa says.
    """

    bind: Bind = key(Bind.NONE, "What the CPUs, the memory and the emulator of an instance are bound to.")
    memory: NumaMemory = key(
        NumaMemory.PREFERRED, "With bind: node, where the host takes an instance's memory from."
    )


@dataclass(frozen=True, slots=True)
class LibvirtEntry:
    """One pool of hypervisors."""

    directory: str = field(
        metadata=about(
            "Shared by all hosts without their own directory, at the same path everywhere.", form="path"
        )
    )
    bridge: str = field(metadata=about("The hosts' network bridge for guests.", form="name"))
    surroundings: SurroundingsEntry = field(metadata=about("What guests are told."))
    images: dict[str, ImageEntry] = field(
        default_factory=dict, metadata=about("Guest images by name; instances.image chooses one.")
    )
    catalogue: str = key(
        "", "The same in a separate file, with the single key images; relative to this file unless absolute."
    )
    guest_network: GuestNetworkEntry = field(
        default_factory=GuestNetworkEntry, metadata=about("Whom guests may talk to.")
    )
    hardware: HardwareEntry = field(default_factory=HardwareEntry, metadata=about("The virtual machine."))
    limits: CallLimits = field(default_factory=CallLimits, metadata=about("Patience."))
    moves: MovesEntry = field(default_factory=MovesEntry, metadata=about("Moves from host to host."))
    numa: NumaEntry = field(default_factory=NumaEntry, metadata=about("NUMA nodes of the hosts."))


@dataclass(frozen=True, slots=True)
class SaltEntry:
    """Salt configures nodes. Its master runs on the daemon's machine."""

    python: str = field(metadata=about("The interpreter of the environment that has Salt.", form="path"))
    config: str = key("/etc/salt/master", "The master's configuration file.", form="path")
    within_s: float = key(120.0, "A run of the states on one node that takes longer has failed.")
    gate: bool = key(
        False,
        "A new node takes jobs only when everything is as its states say, checked in the "
        "guest against a list from the master, or by a successful run. Without it, Salt "
        "works beside the jobs.",
    )


@dataclass(frozen=True, slots=True)
class CondorEntry:
    """The HTCondor pool whose payloads pilots take; it is asked what waits and what happened to
    payloads.
    """

    collector: str = field(
        metadata=about("Where its collector is: host, or host:port; several with commas.", form="service")
    )
    tokens: str = key(
        "/etc/backfill/condor-tokens",
        "Directory with a READ token for the pool; closed to others on the machine.",
        form="path",
    )
    python: str = key(
        "", "A Python that has HTCondor's bindings (`pip install htcondor`); empty: the daemon's own."
    )
    constraint: str = key(
        "", "Which waiting payloads count, as a ClassAd expression; empty: all of the vanilla universe."
    )
    every_s: float = key(30.0, "How often it is asked.")
    within_s: float = key(20.0, "A query that takes longer is ended and counts as unanswered.")
    most_idle: int = key(10_000, "How many waiting payloads are counted at most.")
    most_runs: int = key(
        1000, "How many of the latest runs of each access point are searched for payloads of pilots."
    )


@dataclass(frozen=True, slots=True)
class Config:
    """One checked policy file. `lines`: in which line of `source` each key path stands."""

    policies: PolicySet
    hosts: tuple[HostEntry, ...]
    source: Path
    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    slurm: SlurmSettingsFile = field(default_factory=SlurmSettingsFile)
    libvirt: LibvirtEntry | None = None
    openstack: OpenStackEntry | None = None
    salt: SaltEntry | None = None
    condor: CondorEntry | None = None
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
