"""All checks in the order in which their findings are best mended, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from backfill.config.model import Provider
from backfill.ui.doctor.checks import hosts, machine, slurm
from backfill.ui.doctor.facts import Facts
from backfill.ui.doctor.findings import Finding, Grade

Look = Callable[[Facts], Iterator[Finding]]


class Sight(Enum):
    """What a check looks at; the value is what is to be said where nothing of it is seen."""

    SLURM = "Slurm does not answer"
    LIBVIRT = "all hosts are of a cloud, into which nobody sees from here"
    HOSTS = "no host is seen"
    ALL_HOSTS = "not every host answers"
    OWN_MACHINES = "own_machines.enabled is false"
    SALT = "salt is not configured"
    CONDOR = "condor is not configured"

    def of(self, facts: Facts) -> bool:
        """Return True if there is something to look at."""
        match self:
            case Sight.SLURM:
                return facts.slurm is not None
            case Sight.LIBVIRT:
                return any(host.provider is Provider.LIBVIRT for host in facts.config.hosts)
            case Sight.HOSTS:
                libvirts = [host for host in facts.hosts if host.directory]
                return not libvirts or any(host.inspection is not None for host in libvirts)
            case Sight.ALL_HOSTS:
                return not any(host.problem for host in facts.hosts)
            case Sight.OWN_MACHINES:
                return facts.config.policies.own_machines.enabled
            case Sight.SALT:
                return facts.config.salt is not None
            case Sight.CONDOR:
                return facts.config.condor is not None


# What a check has to see, all of it; the first that is not seen is told.
CHECKS: tuple[tuple[str, Look, tuple[Sight, ...]], ...] = (
    ("Slurm answers the daemon's user", slurm.slurm_answers, ()),
    ("guests get the key that Slurm believes", machine.credentials, ()),
    ("programs are installed", machine.programs, ()),
    ("policy file and cluster agree", slurm.fits_the_file, (Sight.SLURM,)),
    ("slurm.conf has what we need", slurm.settings, (Sight.SLURM,)),
    ("a guest's slurmd can track its jobs", slurm.guests_cgroups, (Sight.SLURM, Sight.LIBVIRT)),
    ("low-priority partitions have our nodes", slurm.partitions, (Sight.SLURM,)),
    ("the hosts' own nodes are open", slurm.host_nodes, (Sight.SLURM,)),
    ("copies of slurm.conf are alike", slurm.copies, (Sight.SLURM,)),
    ("journal, socket and lease", machine.places, ()),
    ("hosts answer", hosts.reach, ()),
    ("hosts can run such guests", hosts.machines, (Sight.LIBVIRT, Sight.HOSTS)),
    ("names are free", hosts.guests, (Sight.LIBVIRT, Sight.HOSTS)),
    ("guests are the daemon's alone", hosts.saved_by_others, (Sight.LIBVIRT, Sight.HOSTS)),
    ("directories can be written", machine.directories, (Sight.LIBVIRT,)),
    ("images are there and whole", machine.images, (Sight.LIBVIRT,)),
    ("hosts see directories and images", hosts.shared_files, (Sight.LIBVIRT, Sight.HOSTS)),
    ("links of others are not followed", hosts.links, (Sight.HOSTS,)),
    ("addresses are free", machine.addresses, (Sight.ALL_HOSTS,)),
    ("addresses lead to slurmctld", machine.way_to_slurmctld, (Sight.LIBVIRT, Sight.SLURM)),
    ("a hook is heard", slurm.hooks, (Sight.SLURM,)),
    ("users can ask for machines of their own", slurm.options, (Sight.OWN_MACHINES,)),
    ("Salt", machine.salt, (Sight.SALT,)),
    ("the HTCondor pool answers", machine.pool, (Sight.CONDOR,)),
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What each check found, by its title, in order; `unseen`: why one had nothing to look at."""

    findings: tuple[tuple[str, tuple[Finding, ...]], ...]
    unseen: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> list[Finding]:
        """Every finding."""
        return [finding for _, found in self.findings for finding in found]

    def has(self, grade: Grade) -> bool:
        """Return True if a finding is of this grade."""
        return any(finding.grade is grade for finding in self.all)

    def then(self, title: str, found: Iterable[Finding]) -> Diagnosis:
        """Return this, and what one more check found."""
        return replace(self, findings=(*self.findings, (title, tuple(found))))


def examine(facts: Facts) -> Diagnosis:
    """Let every check look at the facts, if there are any for it."""
    missing = ((title, [s for s in sights if not s.of(facts)]) for title, _, sights in CHECKS)
    unseen = {title: sights[0].value for title, sights in missing if sights}
    return Diagnosis(tuple((title, tuple(look(facts))) for title, look, _ in CHECKS), unseen)
