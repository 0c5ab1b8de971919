"""The checked policy file as frozen values. Field names are the file's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from backfill.config.cloud import OpenStackEntry
from backfill.config.images import ImageEntry
from backfill.core.policy import PolicySet


class Provider(StrEnum):
    """Which driver looks after a host."""

    LIBVIRT = "libvirt"
    OPENSTACK = "openstack"
    SIMULATED = "simulated"


class DomainType(StrEnum):
    """How a guest's CPUs are run."""

    KVM = "kvm"
    QEMU = "qemu"  # in software


class RegistrationKind(StrEnum):
    """How our nodes come to be known to Slurm."""

    DYNAMIC = "dynamic"  # added while slurmctld runs
    CONF = "conf"  # a line of the managed file
    CLOUD = "cloud"  # a State=CLOUD line of the managed file


class ReadKind(StrEnum):
    """How nodes and jobs are read."""

    AUTO = "auto"  # as text, the fastest; as JSON where the text cannot be read
    TEXT = "text"  # columns of squeue and scontrol
    JSON = "json"  # squeue and scontrol with --json
    REST = "rest"  # jobs from slurmrestd at rest_socket
    PYSLURM = "pyslurm"  # jobs through pyslurm, in a process of its own


class HookPlaceKind(StrEnum):
    """Where Slurm calls the hook."""

    SLURMCTLD = "slurmctld"  # PrologSlurmctld and EpilogSlurmctld
    HOST = "host"  # Prolog and Epilog of each host's slurmd


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """How the daemon itself runs."""

    # Where the journal is kept.
    state_dir: str = field(default="/var/lib/backfill", metadata={"form": "path"})
    # How long the journal can tell a story; what a restarted daemon needs is kept for ever.
    journal_keep_s: float = 2_592_000.0
    # The local socket for the command line and for hooks on this machine.
    socket: str = field(default="/run/backfill/daemon.sock", metadata={"form": "path"})
    # Address and port for hooks on other machines; empty: none.
    listen: str = field(default="", metadata={"form": "endpoint"})
    # How often Slurm is read when nothing is going on.
    poll_s: float = 2.0
    # How often each host is read when nothing is going on.
    host_poll_s: float = 5.0
    # How often one node or host is read while something there is awaited.
    watch_s: float = 0.03
    # How often this file is looked at: a good new one is taken over. 0: only when told to.
    policy_s: float = 5.0
    # Threads each for evictions, for long actions, for all others and for readings, of Slurm and of
    # each provider.
    workers: int = field(default=16, metadata={"most": 1024})


@dataclass(frozen=True, slots=True)
class HooksEntry:
    """What `backfill slurm hooks install` installs."""

    # Where Slurm calls the hook.
    place: HookPlaceKind = HookPlaceKind.SLURMCTLD
    # The programs' directory; with place: host, the same on the controller and every host.
    directory: str = field(default="/usr/local/lib/backfill", metadata={"form": "path"})
    # Where hooks complain; Slurm's user must be able to write there.
    log: str = field(default="/var/log/slurm/backfill-hook.log", metadata={"form": "path"})
    # How much longer than answer_within_s a hook waits: no job is ever held longer than both.
    margin_s: float = field(default=1.5, metadata={"most": 60})
    # Tell the daemon at once when a job is submitted, by job_submit.lua.
    arrival: bool = True


@dataclass(frozen=True, slots=True)
class SlurmSettingsFile:
    """Where Slurm is, and how we change its configuration."""

    # The configuration that scontrol and the others are to use.
    conf: str = field(default="/etc/slurm/slurm.conf", metadata={"form": "path"})
    # Directory of scontrol, squeue and sinfo; empty: as PATH says.
    bin_dir: str = field(default="", metadata={"form": "path"})
    # A Slurm command that takes longer has failed.
    timeout_s: float = 10.0
    # How nodes and jobs are read. A way that fails is left for text and tried again in a minute.
    read: ReadKind = ReadKind.AUTO
    # The local socket of a slurmrestd that admits the daemon's user; for read: rest.
    rest_socket: str = field(default="", metadata={"form": "path"})
    # A Python that has pyslurm, of slurmctld's release or the one before; for read: pyslurm.
    pyslurm_python: str = field(default="/usr/bin/python3", metadata={"form": "path"})
    # How our nodes come to be known to Slurm.
    registration: RegistrationKind = RegistrationKind.DYNAMIC
    # Our own file beside slurm.conf, which slurm.conf includes; nothing else is ever written.
    include: str = field(default="backfill.conf", metadata={"form": "name"})
    # The command that restarts slurmctld, word by word, for the few changes that an old release
    # takes only so; empty: it is never restarted.
    restart: tuple[str, ...] = ()
    # After a reload, how long until slurmctld, all nodes and all jobs must be there again.
    health_s: float = 20.0
    # Hooks.
    hooks: HooksEntry = field(default_factory=HooksEntry)


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One machine that carries instances."""

    # How it is called here and in messages.
    name: str = field(metadata={"form": "name"})
    # The driver that looks after it.
    provider: Provider
    # Its own Slurm node: the same name when left out, null for a host that is no Slurm node.
    node: str | None = field(default="", metadata={"form": "name"})
    # Where its libvirt listens, such as qemu+tcp://10.0.0.11/system.
    uri: str = field(default="", metadata={"form": "uri"})
    # For libvirt: a directory of its own for instances, at the same path on the daemon's machine;
    # hosts with equal ones share it. Empty: libvirt.directory, which the others share.
    directory: str = field(default="", metadata={"form": "path"})
    # Its entry in clouds.yaml: for provider openstack, where a host is a whole project.
    cloud: str = field(default="", metadata={"form": "name"})
    # Nova's name of one compute host, if the host is only that; takes an administrator.
    compute: str = field(default="", metadata={"form": "name"})
    # CPUs that instances never take on this host, on top of limits.keep_cpus.
    keep_cpus: int = 0
    # Memory that instances never take on this host, on top of limits.keep_memory_mb.
    keep_memory_mb: int = 0

    def __post_init__(self) -> None:
        if self.node == "":
            object.__setattr__(self, "node", self.name)


@dataclass(frozen=True, slots=True)
class SurroundingsEntry:
    """What every guest is told when it boots."""

    # The controller's address.
    controller: str = field(metadata={"form": "ip"})
    # Where slurmd gets its configuration: address and port of slurmctld.
    conf_server: str = field(metadata={"form": "endpoint"})
    # The cluster's munge key, on the daemon's machine.
    munge_key: str = field(metadata={"form": "path"})
    # Default route; empty: none.
    gateway: str = field(default="", metadata={"form": "ip"})
    # Options with which the guest's slurmd is started; -Z is left out unless slurm.registration is
    # dynamic.
    slurmd_options: str = "-Z"
    # Programs that slurm.conf names for every slurmd and that mean nothing in a guest: made there
    # as programs that do nothing. Those of slurm.hooks with place: host need not be named.
    no_ops: tuple[str, ...] = field(default=(), metadata={"form": "path"})
    # The controller's time server, which guests follow and prove their clocks against; empty: the
    # daemon's own clock, as the guest's agent passes it on.
    time_server: str = field(default="", metadata={"form": "ip"})
    # Network file systems that guests mount, each as in fstab:
    # "10.0.0.1:/home /home nfs4 rw,hard,vers=4.1".
    mounts: tuple[str, ...] = field(default=(), metadata={"form": "mount"})


@dataclass(frozen=True, slots=True)
class HardwareEntry:
    """The virtual machine's fixed parts; the same on all hosts, so that instances can move."""

    # How its CPUs are run.
    domain_type: DomainType = DomainType.KVM
    # The board, as QEMU names it.
    machine: str = "q35"
    # A model that libvirt knows, or a mode such as host-model.
    cpu_model: str = "qemu64"
    # Features that the model lacks. Without rdrand a guest waits a second for randomness at boot.
    cpu_features: tuple[str, ...] = ()
    # CPU weight against everything else on the host; null leaves it alone.
    cpu_shares: int | None = field(default=2, metadata={"least": 2, "most": 262144})
    # Other than none or directsync only where all hosts are one machine.
    disk_cache: str = "none"
    # A balloon, with which an instance can give memory back; never in instant clones.
    balloon: bool = False
    # Without KVM: at most so much of the host's memory, MiB, for an instance's translated code.
    # What does not fit is translated over and over: Salt needs 512. A clone has half.
    translation_cache_mb: int = field(default=64, metadata={"least": 16, "most": 2048})


@dataclass(frozen=True, slots=True)
class CallLimits:
    """How long one call to libvirt may take before its outcome counts as unknown."""

    connect_s: float = 10.0  # opening the connection
    call_s: float = 20.0  # an ordinary call
    start_s: float = 60.0  # starting an instance
    long_s: float = 900.0  # writing memory to disk, reading it back, moving an instance
    agent_s: float = 10.0  # a word with the guest's agent
    # A host that is silent for keepalive_s, keepalive_count times, loses its connection.
    keepalive_s: int = 5
    keepalive_count: int = 3
    # After so many unanswered calls to one host, further ones fail at once.
    stuck_calls: int = 16


@dataclass(frozen=True, slots=True)
class MovesEntry:
    """How an instance may move to another host with its memory."""

    # At most so many MiB per second for one move; null: as fast as it goes.
    bandwidth_mb_s: int | None = field(default=None, metadata={"least": 1, "unit": ""})
    # A move that takes longer is cancelled, and the instance goes on where it was.
    within_s: float = 300.0
    # After that the instance goes on at the target and fetches the rest from there: this ends
    # every move, but the instance is lost when the network breaks meanwhile; null: never. Where
    # QEMU is not root the hosts need `vm.unprivileged_userfaultfd=1`, or these moves are refused.
    post_copy_after_s: float | None = None
    # How long one move waits for others between the same two hosts.
    turn_s: float = 120.0
    # Whether a running instance runs on while its memory is sent; null: with hardware.domain_type
    # kvm only, because software emulation loses what is written in the wrong moment.
    live: bool | None = None


@dataclass(frozen=True, slots=True)
class LibvirtEntry:
    """One pool of hypervisors."""

    # Shared by all hosts that have none of their own, at the same path everywhere.
    directory: str = field(metadata={"form": "path"})
    # The hosts' network bridge for guests.
    bridge: str = field(metadata={"form": "name"})
    # What guests are told.
    surroundings: SurroundingsEntry
    # Guest images by name; instances.image chooses one.
    images: dict[str, ImageEntry] = field(default_factory=dict)
    # The same in a file of its own, with the one key images; beside this file unless absolute.
    catalogue: str = ""
    # The virtual machine.
    hardware: HardwareEntry = field(default_factory=HardwareEntry)
    # Patience.
    limits: CallLimits = field(default_factory=CallLimits)
    # Moves from host to host.
    moves: MovesEntry = field(default_factory=MovesEntry)


@dataclass(frozen=True, slots=True)
class SaltEntry:
    """Salt configures nodes. Its master runs on the daemon's machine."""

    # The interpreter of the environment that has Salt.
    python: str = field(metadata={"form": "path"})
    # The master's configuration file.
    config: str = field(default="/etc/salt/master", metadata={"form": "path"})
    # A run of the states on one node that takes longer has failed.
    within_s: float = 120.0
    # Whether a new node takes jobs only when all is as its states say: seen in the guest by a list
    # from the master, or by a run that succeeded. Without, Salt looks after it beside the jobs.
    gate: bool = False


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
    lines: Mapping[str, int] = field(default_factory=dict, repr=False, compare=False)
