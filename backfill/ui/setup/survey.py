"""What a cluster is like before anything of ours is there: asked of scontrol and of the hosts' libvirt."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.core.model.cluster import ENDED, Node, SlurmSettings
from backfill.drivers.slurm.checks import is_dynamic
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.site import Site, read_site
from backfill.drivers.slurm.driver import SlurmManager
from backfill.ports.errors import DriverError
from backfill.ui.doctor.places import unescaped

if TYPE_CHECKING:
    from backfill.drivers.libvirt.inspection import HostInspection
    from backfill.ports.workload import ClusterObservation

MANAGED = "backfill.conf"
_PORT = 6817
_NETWORK_FILES = ("nfs", "nfs4", "ceph", "lustre", "gpfs", "beegfs", "fuse.glusterfs")
_OF_LIBVIRT = "virbr"
_FSTAB = Path("/etc/fstab")
# What of fstab's options says when and by whom to mount; in a guest that is settled.
_NOT_FOR_GUESTS = re.compile(r"x-.*|auto|_netdev|nofail|bg|user|users|comment=.*")
URI = "qemu+tcp://{address}/system"


@dataclass(frozen=True, slots=True)
class HostSurvey:
    """A node that may carry instances. `problem`: why its libvirt does not answer."""

    node: Node
    uri: str
    problem: str = ""
    inspection: HostInspection | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """The cluster. `controllers`: addresses of every slurmctld, the primary first.

    `shared`: file systems of a network, as mounted. `mounts`: those of them that this machine's fstab
    has, each a line as a guest can have it; `mounted`: where any file system is mounted here. `jobs` is
    how many run or wait. `site`: slurm.conf as Slurm reads it; `texts`: it, and cgroup.conf.
    """

    settings: SlurmSettings
    controllers: tuple[str, ...]
    port: int
    user: str
    site: Site
    hosts: tuple[HostSurvey, ...] = ()
    shared: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    jobs: int = 0
    mounted: tuple[str, ...] = ()

    @property
    def bridge(self) -> str:
        """The bridge that most hosts have; empty where none has one."""
        found = Counter(
            bridge
            for host in self.hosts
            if host.inspection is not None
            for bridge in host.inspection.bridges or ()
            if not bridge.startswith(_OF_LIBVIRT)
        )
        return found.most_common(1)[0][0] if found else ""

    @property
    def has_kvm(self) -> bool:
        """Return True if every host that answers runs guests on its processors."""
        seen = [host.inspection for host in self.hosts if host.inspection is not None]
        return bool(seen) and all(one.kvm for one in seen)


def survey(conf: Path, names: Sequence[str], uri: str) -> Survey:
    """Look at a cluster. `names`: nodes that shall carry instances, all when empty; `uri`: with {name}
    and {address} in it. Raises DriverError where Slurm does not answer, SiteError for a slurm.conf that
    cannot be read."""
    tools = SlurmTools(conf=conf)
    manager = SlurmManager(tools)
    settings = manager.settings()
    seen = manager.observe()
    nodes = seen.nodes
    chosen = [node for node in nodes.values() if not is_dynamic(node) and (not names or node.name in names)]
    texts = {"slurm.conf": read_or_empty(conf), "cgroup.conf": read_or_empty(conf.with_name("cgroup.conf"))}
    port = re.match(r"\d+", settings.raw.get("SlurmctldPort", ""))
    mounted = mounted_in(Path("/proc/mounts").read_text(errors="surrogateescape"))
    return Survey(
        settings,
        tuple(map(address_of, settings.controllers or ("localhost",))),
        int(port[0]) if port else _PORT,
        re.sub(r"\(.*", "", settings.raw.get("SlurmUser", "root")),
        read_site(conf, conf.with_name(MANAGED)),
        tuple(_host(node, uri, conf) for node in sorted(chosen, key=lambda node: node.name)),
        tuple(place for place, kind in mounted.items() if kind in _NETWORK_FILES),
        texts,
        mounts_in(_FSTAB.read_text(errors="surrogateescape")) if _FSTAB.exists() else (),
        jobs_of(seen),
        tuple(mounted),
    )


def jobs_of(seen: ClusterObservation) -> int:
    """Return how many jobs run or wait."""
    return sum(job.state not in ENDED for job in seen.jobs.values())


def address_of(controller: str) -> str:
    """Return the address of a slurmctld, from its SlurmctldHost; its name where nobody knows it."""
    named = re.match(r"([^()]+)(?:\((.*)\))?", controller)
    word = (named[2] or named[1]) if named else controller
    try:
        found = [str(place[0]) for *_, place in socket.getaddrinfo(word, None, type=socket.SOCK_STREAM)]
    except OSError:
        return word
    return next((address for address in found if ":" not in address), found[0])  # IPv4 where it has one


def address_towards(address: str) -> str:
    """Return the address of this machine from which it would speak to another; empty: it has no way there.

    Nothing is sent for it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((address, _PORT))
        except OSError:
            return ""
        return str(asked.getsockname()[0])


def _host(node: Node, pattern: str, conf: Path) -> HostSurvey:
    from backfill.drivers.libvirt.inspection import inspect
    from backfill.drivers.libvirt.settings import Hardware, LibvirtLimits

    uri = pattern.format(name=node.name, address=node.address or node.name)
    try:
        seen = inspect(node.name, uri, LibvirtLimits(), Hardware(), {str(conf.parent): (conf.name,)})
    except DriverError as error:
        return HostSurvey(node, uri, str(error))
    return HostSurvey(node, uri, inspection=seen)


def mounted_in(mounts: str) -> dict[str, str]:
    """Return where which kind of file system is mounted, by the text of /proc/mounts."""
    lines = (line.split() for line in mounts.splitlines())
    return {unescaped(words[1]): words[2] for words in lines if len(words) > 2}


def mounts_in(fstab: str) -> tuple[str, ...]:
    """Return fstab's NFS lines, as guests can have them; what is not to be mounted by itself is left out."""
    found = []
    for line in fstab.splitlines():
        words = line.split()
        if len(words) < 4 or line.lstrip().startswith("#") or not words[2].startswith("nfs"):
            continue
        options = [word for word in words[3].split(",") if not _NOT_FOR_GUESTS.fullmatch(word)]
        if "noauto" not in options and ":/" in words[0]:
            found.append(" ".join([*words[:3], ",".join(options) or "defaults"]))
    return tuple(found)
