"""Everything that the checks look at: gathered by `look` from a real cluster, planted by tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from backfill.config.model import Config
from backfill.core.model.cluster import Node, SlurmSettings
from backfill.drivers.slurm.conf.site import Site
from backfill.ui.commands.hook_check import Found
from backfill.ui.commands.options_check import OptionsFound

if TYPE_CHECKING:
    from backfill.drivers.libvirt.inspection import HostInspection


@dataclass(frozen=True, slots=True)
class Who:
    """The user as whom all this was looked at."""

    uid: int
    name: str
    groups: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """What Slurm says. `partitions`: each one's settings; `admin`: uid of SlurmUser, if it is told.

    `conf`: texts of slurm.conf and what lies beside it, by name; `closed`: what of that cannot be read;
    `site`: slurm.conf with all that it includes, None where that cannot be read. `conflicts` and `hints`
    compare it with the policy file.
    """

    settings: SlurmSettings
    nodes: Mapping[str, Node] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    admin: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    site: Site | None = None
    closed: frozenset[str] = frozenset()
    conflicts: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def included(self) -> bool | None:
        """Whether slurm.conf brings our file in; None where that cannot be read."""
        return None if self.site is None else self.site.include is not None


@dataclass(frozen=True, slots=True)
class PlaceFacts:
    """A file or directory as that user meets it. `problem`: why it is of no use; empty: it is.

    `start`: the first bytes of a file; `free_mb`: room in a directory; `ahead_s`: how far a new
    file's date is ahead of this machine's clock; `closed_at`: the first directory on the way that
    others may not enter, with its owner and group; `mount`: the mount point that it lies below, empty
    for the root's; `unmounted`: one that fstab has on the way, where nothing is mounted.
    """

    path: str
    problem: str = ""
    there: bool = True
    size: int = 0
    start: bytes = b""
    free_mb: float | None = None
    ahead_s: float = 0.0
    closed_at: tuple[str, int, int] | None = None
    mount: str = ""
    unmounted: str = ""


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """The files of an image by their keys; `changed`: its disk's checksum where it is another one.

    By the list of packages beside the disk, if there is one, `systemd`: whether its guests have that;
    `slurmd`: the version of theirs.
    """

    files: Mapping[str, PlaceFacts] = field(default_factory=dict)
    changed: str = ""
    systemd: bool | None = None
    slurmd: str = ""


# Settings of the kernel about files of others in directories where everybody may write (proc_sys_fs(5)).
PROTECTIONS = "/proc/sys/fs"
PROTECTED = ("protected_symlinks", "protected_hardlinks", "protected_regular")

# Where systemd notes that libvirt-guests is enabled, and that a host has its own word on it, as to mask it.
GUESTS_WANTED, GUESTS_UNIT = (
    f"/etc/systemd/system/{place}" for place in ("multi-user.target.wants", "libvirt-guests.service")
)


@dataclass(frozen=True, slots=True)
class HostFacts:
    """A host. `problem`: why it does not answer; `ours`: our instances there; `marker`: a file that
    was put into its directory a moment ago; `exposed`: what of ours is where everybody may write."""

    name: str
    problem: str = ""
    ours: frozenset[str] = frozenset()
    inspection: HostInspection | None = None
    directory: str = ""
    marker: str = ""
    exposed: str = ""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """The HTCondor pool. `token_problem`: why no token is good, and what mends it;
    `token_left_s`: how long the last one is good, None: no end is known; `silent`: why the pool does not
    answer, with a token that is good.
    """

    token_problem: str = ""
    token_left_s: float | None = None
    silent: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it. What is None was not looked at, mostly because something before it failed."""

    config: Config
    who: Who
    slurm: SlurmFacts | None = None
    slurm_problem: str = ""
    munge_problem: str = ""
    key_problem: str = ""  # why the key for guests cannot be used here
    key_refused: str | None = None  # why it is not the cluster's
    tools_missing: tuple[str, ...] = ()
    libvirt_missing: bool = False
    state_dir: PlaceFacts | None = None
    state_files: tuple[str, ...] = ()  # what lies there and is closed to the daemon's user
    socket_problem: str | None = None
    listen_problem: str | None = None
    exposed: str = ""  # what of ours is here where everybody may write
    protections: Mapping[str, str] = field(default_factory=dict)  # PROTECTED here, as far as there are any
    lease: PlaceFacts | None = None
    images: Mapping[str, ImageFacts] = field(default_factory=dict)
    directories: Mapping[str, PlaceFacts] = field(default_factory=dict)
    hosts: tuple[HostFacts, ...] = ()
    taken: Mapping[str, str] = field(default_factory=dict)  # name of ours: address that another has
    controller_problems: Mapping[str, str] = field(default_factory=dict)
    hooks: Found | None = None
    hooks_unknown: str = ""
    options: OptionsFound = field(default_factory=OptionsFound)
    salt_problem: str | None = None
    pool: PoolFacts | None = None
