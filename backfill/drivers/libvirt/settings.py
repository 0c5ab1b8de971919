"""Settings of the libvirt driver: hosts, images, the guests' surroundings, limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.libvirt.filtering import GuestFilter


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """A guest image for direct kernel boot; paths are absolute and the same on every host.

    `disk` is never written: it is the backing file of every instance's overlay.
    """

    kernel: str
    initrd: str
    disk: str
    cmdline: str
    disk_format: str = "raw"
    sha256: str = ""  # of the disk: another sum is another image, with parents of its own
    user_data: str = ""  # a file on the daemon's machine for the guests' cloud-init; empty: none
    own_root_mb: int = 0  # how large a root file system of a user's own may be there; 0: none may be


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Facts that every guest gets: addresses of gateway and controller, where slurmd finds its
    configuration (ip:port), the munge key's file on the daemon's machine, slurmd's options.

    `slurm_key`: with auth/slurm the file of Slurm's own key there instead, slurm.key or slurm.jwks.
    """

    controller: str
    conf_server: str
    munge_key: str = ""
    gateway: str = ""
    slurmd_options: str = "-Z"
    # Programs that slurm.conf names for every slurmd and that mean nothing in a guest, such as our
    # own Prolog on the hosts: made there as programs that do nothing.
    no_ops: tuple[str, ...] = ()
    # Whom a prolog among them asks whether the devices of the job that begins are in its guest, and
    # how long: "tcp:IP:PORT MILLISECONDS". Empty: nobody.
    asks: str = ""
    # The controller's time server, an address; empty: the clock is measured through the agent.
    time_server: str = ""
    # Network file systems, as in fstab: "10.0.0.1:/home /home nfs4 rw,vers=4.1".
    mounts: tuple[str, ...] = ()
    # Addresses of all our nodes by name: guests know one another.
    peers: Mapping[str, str] = field(default_factory=dict)
    slurm_key: str = ""


@dataclass(frozen=True, slots=True)
class LibvirtLimits:
    """Seconds that one call may take before its outcome counts as unknown.

    A host that is silent for `keepalive_s` times `keepalive_count` loses its connection.
    `stuck_calls`: with so many calls to one host that had no answer in time and have none yet, further
    ones fail at once.
    """

    connect_s: float = 10.0
    call_s: float = 20.0
    start_s: float = 60.0
    long_s: float = 900.0
    agent_s: float = 10.0
    keepalive_s: int = 5
    keepalive_count: int = 3
    stuck_calls: int = 16


@dataclass(frozen=True, slots=True)
class Hardware:
    """The virtual machine's fixed parts; they must mean the same on all hosts (migration).

    `cpu_model` is a model that libvirt knows or one of its modes such as `host-model`.
    `cpu_shares` is the weight against everything else on the host; None leaves it alone.
    `disk_cache` other than none or directsync is for shared directories of one machine.
    """

    domain_type: str = "kvm"
    machine: str = "q35"
    cpu_model: str = "qemu64"
    # Features that the model lacks. Without rdrand a guest waits a second for randomness at boot.
    cpu_features: tuple[str, ...] = ()
    cpu_shares: int | None = 2
    disk_cache: str = "none"
    # Whether guests that boot by themselves get a balloon, with which they can give memory back.
    balloon: bool = False
    # So many devices can be plugged into a guest that runs, where the board has no slots to spare.
    slots: int = 0
    # The largest region among them, MB: so much room is left behind each of these slots.
    slot_mb: int = 0
    # Translated guest code that QEMU keeps where there is no KVM. When it is full all of it is made
    # anew: 64 MiB are right for slurmd and small jobs, Salt needs several hundred.
    translation_cache_mb: int = 64


@dataclass(frozen=True, slots=True)
class MoveTerms:
    """Terms on which a guest with memory may change hosts.

    `bandwidth_mb_s`: at most so much (MiB/s) for one move; None: as fast as it goes. `within_s`:
    after that it is cancelled and the guest goes on where it was. `post_copy_after_s`: after that
    the guest goes on at the target and fetches the rest from there, which ends every move but loses
    the guest when the network breaks meanwhile; None: never. `turn_s`: patience for other moves
    between the same two hosts. `live`: whether a running guest runs on while its memory is sent;
    None: where KVM runs it.
    """

    bandwidth_mb_s: int | None = None
    within_s: float = 300.0
    post_copy_after_s: float | None = None
    turn_s: float = 120.0
    live: bool | None = None


@dataclass(frozen=True, slots=True)
class NumaTerms:
    """Terms on which instances are bound to NUMA nodes, and by which one is chosen.

    `memory`: where it is taken from, as libvirt has it: "preferred" or "strict". `keep`: what no host
    gives to instances, beside what it keeps for itself.
    """

    memory: str = "preferred"
    cpu_overcommit: float = 1.0
    keep: Resources = NOTHING


@dataclass(frozen=True, slots=True)
class LibvirtConfig:
    """One pool of hypervisors. `directory` is an absolute path that is the same everywhere.

    `directories`: a host's own one instead, at the same path on the daemon's machine; hosts with
    equal ones share it. Of `directory` such hosts need to see nothing. `uris`: libvirt address of
    each host as seen from here and, for migration, from each other. `nodes`: the host's own Slurm
    node, absent for a host that is none. `reserve`: what a host keeps for itself. `images`: by the
    name that instances ask for. `reach`: the networks, in CIDR notation, beyond which no guest gets;
    None: no guest's card is filtered. `networks`: bridges by their names, but for
    the usual one.
    """

    cluster: str
    uris: dict[str, str]
    directory: str
    bridge: str
    surroundings: Surroundings
    images: dict[str, ImageFiles]
    nodes: dict[str, str] = field(default_factory=dict)
    reserve: dict[str, Resources] = field(default_factory=dict)
    directories: dict[str, str] = field(default_factory=dict)
    hardware: Hardware = field(default_factory=Hardware)
    limits: LibvirtLimits = field(default_factory=LibvirtLimits)
    moves: MoveTerms = field(default_factory=MoveTerms)
    # Whether a guest has to show that Salt's states have succeeded before it counts as proven.
    await_salt: bool = False
    # How far a host's own clock may be off the daemon's.
    clock_offset_s: float = 1.0
    reach: tuple[str, ...] | None = None
    networks: dict[str, str] = field(default_factory=dict)
    numa: NumaTerms | None = None  # None: no instance is bound to a NUMA node

    @property
    def guest_filter(self) -> GuestFilter | None:
        """Return the filter of all guests' cards; None: there is none."""
        return None if self.reach is None else GuestFilter(self.cluster, self.reach)

    @property
    def moves_live(self) -> bool:
        """Return True if a running guest runs on while its memory is sent to another host.

        Measured (QEMU 7.2): an emulated CPU's write is lost now and then when it meets the look for
        changed pages, and a guest that moves while it writes much crashes: in 2 of 35 moves.
        """
        return self.hardware.domain_type != "qemu" if self.moves.live is None else self.moves.live

    def reserved_on(self, host: str) -> Resources:
        """Return the resources that `host` keeps for itself."""
        return self.reserve.get(host, NOTHING)
