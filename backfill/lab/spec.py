"""The specification of a lab: its parts, its addresses and the places of its files."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any, Literal

NETWORK = "10.77.0.0/16"
CONTROLLER_ADDRESS = "10.77.0.1"
SLURMCTLD_PORT = 6817
SLURMD_PORT = 6818
LIBVIRT_PORT = 16509
CLOUD_ADDRESS = "10.77.250.1"  # of the test cloud, in the network of its guests
TALLY_PORT = 9777
FILES_PORT = 2049
SALT_PORT = 4506
CONDOR_PORT = 9618
HOOK_PORT = 830  # where the daemon hears hooks on the hosts
VIRTUAL_NODES = 250
MAX_HOSTS = 100

# As the packages of distributions have it: root runs neither slurmctld nor QEMU, and no job.
SLURM_USER = "slurm"
QEMU_USER = "libvirt-qemu"
JOB_USER = "ada"
JOB_USER_LINE = f"{JOB_USER}:x:2001:2001:A user of the cluster:/tmp:/bin/bash"

# The machines of an HTCondor pool: no part of the cluster, and a submit host of it.
POOL, CE = "pool", "ce"
_FIXED = {"ctl": CONTROLLER_ADDRESS, POOL: "10.77.0.2", CE: "10.77.0.3"}
# HTCondor comes from Debian 13, and guests that run it are of one piece.
CONDOR_SLURM = "24.11"
# Those whose Debian has a systemd that boots on control groups of version 1: 258 and later do not.
SITE_RELEASES = ("22.05", "24.11")

# Debian 12's is installed on the machine itself; each later one lives in a root of its own.
HYPERVISORS = ("debian-12", "debian-13")
NO_HYPERVISOR = "none"

HookPlace = Literal["none", "slurmctld", "host"]
Auth = Literal["munge", "slurm"]


class LabError(Exception):
    """Something about the lab that the user can put right; the message is one sentence."""


class LabMisuseError(LabError):
    """The command line itself asks for what cannot be."""


class LabPermissionError(LabError):
    """Only root can do it."""


@dataclass(frozen=True, slots=True)
class LabSpec:
    """A lab as asked for. `hosts` bare-metal machines bm1..bmN, each with `cpus` and `memory_mb`.

    `hooks` says where Slurm calls a hook at a job's start and end, if at all; without a path in
    `hook` (and `hook_epilog`) the lab builds one that talks to `Lab.daemon_socket` and gives up
    after `hook_timeout_ms`; `hook_limit_s` is Slurm's PrologEpilogTimeout, 0 for none.
    `hypervisor` names the release whose libvirt and QEMU the hosts run, or one for each host with
    commas in between, or "none".
    `slurm_version` steers the differences of slurm.conf between releases and `roots` maps a
    machine's name to the root directory whose Slurm it runs ("/" otherwise).
    `condor` adds the machine of an HTCondor pool, whose pilots can be jobs here, and `ce` one that
    submits such pilots as a compute element does. `mpi`: its guests can run MPI programs.
    `time`, `files` and `salt` add a time server, a file server and a Salt master to the controller.
    `site` makes whole machines, with systemd, accounting and control groups (`backfill.lab.site`); their
    hosts have their own copies of slurm.conf, or with `configless` none.
    `auth`: by what Slurm's daemons know one another; with "slurm" no munged runs.
    """

    name: str = "lab"
    hosts: int = 2
    cpus: int = 2
    memory_mb: int = 2000
    hypervisor: str = HYPERVISORS[0]
    hooks: HookPlace = "none"
    hook: str = ""
    hook_epilog: str = ""
    hook_timeout_ms: int = 3000
    hook_limit_s: int = 10
    slurmd_timeout_s: int = 0
    select_parameters: str = "CR_Core"
    extra_conf: tuple[str, ...] = ()
    slurm_version: str = "22.05"
    roots: tuple[tuple[str, str], ...] = ()
    tally: bool = True
    time: bool = False
    files: bool = False
    salt: bool = False
    condor: bool = False
    ce: bool = False
    mpi: bool = False
    site: bool = False
    configless: bool = False
    auth: Auth = "munge"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", self.name):
            raise LabError(f"lab name {self.name!r}: use lower-case letters, digits and '-', 31 at most")
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise LabError(f"hosts={self.hosts}: a lab has between 1 and {MAX_HOSTS} hosts")
        if self.cpus < 1 or self.memory_mb < 1:
            raise LabError("cpus and memory_mb of a lab's hosts must be at least 1")
        names = self.hypervisor.split(",")
        if names != [NO_HYPERVISOR] and (set(names) - set(HYPERVISORS) or len(names) not in (1, self.hosts)):
            raise LabError(
                f"hypervisor={self.hypervisor!r}: use none, {' or '.join(HYPERVISORS)}, or one for "
                f"each host, as in {','.join(HYPERVISORS)}"
            )
        if self.hooks not in ("none", "slurmctld", "host"):
            raise LabError(f"hooks={self.hooks!r}: use none, slurmctld or host")
        self._check_site()
        self._check_condor()
        for path in filter(None, (self.hook, self.hook_epilog)):
            if not os.path.isabs(path) or not os.access(path, os.X_OK):
                raise LabError(f"hook {path!r} is not the absolute path of an executable file")

    def _check_site(self) -> None:
        if self.auth == "slurm" and (self.site or self.slurm_version == "22.05"):
            raise LabError("auth=slurm takes a plain lab of Slurm 24.11 or later")
        if self.site and (self.time or self.files or self.salt or self.hooks != "none"):
            raise LabError("a site has no time, files, Salt or hook from the lab: install them in it")
        if self.site and self.slurm_version not in SITE_RELEASES:
            raise LabError(
                f"no site has Slurm {self.slurm_version}: its Debian's systemd boots on control groups of "
                f"version 2 alone, and a site of the lab has version 1; take {' or '.join(SITE_RELEASES)}"
            )
        if self.configless and not self.site:
            raise LabError("only the hosts of a site can be without a slurm.conf")

    def _check_condor(self) -> None:
        if self.ce and not (self.condor and self.files):
            raise LabError(
                "a compute element brings pilots for a pool, by files that guests share with it: "
                "ask for the pool and a file server, too"
            )
        if self.condor and (self.slurm_version != CONDOR_SLURM or self.site or self.salt):
            raise LabError(
                f"a lab with an HTCondor pool has Slurm {CONDOR_SLURM}, whose Debian has HTCondor, "
                "and is neither a site nor one with Salt"
            )

    @property
    def host_names(self) -> tuple[str, ...]:
        """bm1..bmN."""
        return tuple(f"bm{i}" for i in range(1, self.hosts + 1))

    @property
    def machines(self) -> tuple[str, ...]:
        """Every machine, in the order in which they start."""
        return ("switch", "ctl", *self.host_names, *self.condor_machines)

    @property
    def condor_machines(self) -> tuple[str, ...]:
        """Return the machines that run daemons of HTCondor."""
        return (*((POOL,) if self.condor else ()), *((CE,) if self.ce else ()))

    def hypervisor_of(self, machine: str) -> str:
        """Return the release whose hypervisor `machine` runs; "" where there is none."""
        if machine not in self.host_names or self.hypervisor == NO_HYPERVISOR:
            return ""
        names = self.hypervisor.split(",")
        return names[self.host_names.index(machine) % len(names)]

    def root_of(self, machine: str) -> str:
        """Return the root directory whose programs `machine` runs."""
        return dict(self.roots).get(machine, "/")

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file; `from_json` is the inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> LabSpec:
        """Read what `to_json` wrote."""
        return cls(
            **{
                **values,
                "extra_conf": tuple(values["extra_conf"]),
                "roots": tuple((machine, root) for machine, root in values["roots"]),
            }
        )


def hardware_address(address: str) -> str:
    """Return a hardware address for the bridge that has this one; no other has it in the same network.

    A bridge without one of its own takes the least of its ports', so that a guest's tap may change it:
    neighbours that have learnt the tap's send into nothing once the guest has moved away.
    """
    return "02:bf:" + IPv4Interface(address).ip.packed.hex(":")


def host_address(name: str) -> str:
    """Return the address of `ctl`, `pool`, `ce`, `bmI` or `vnK` (K from 1 to 250) inside any lab."""
    if name in _FIXED:
        return _FIXED[name]
    number = int(name[2:]) if re.fullmatch(r"(bm|vn)[1-9][0-9]*", name) else 0
    if name.startswith("bm") and 1 <= number <= MAX_HOSTS:
        return f"10.77.0.{10 + number}"
    if name.startswith("vn") and 1 <= number <= VIRTUAL_NODES:
        return f"10.77.1.{number}"
    raise LabError(f"{name!r} is no machine of a lab: use ctl, bm1.. or vn1..vn{VIRTUAL_NODES}")


def lab_root() -> Path:
    """Return the directory that holds every lab's files."""
    return Path(os.environ.get("BACKFILL_LAB_ROOT", "/var/lib/backfill-lab"))


def cache_root() -> Path:
    """Return the directory that holds what is costly to make and safe to lose: images, verdicts."""
    return Path(os.environ.get("BACKFILL_CACHE", "/var/cache/backfill"))
