"""All checks in the order in which their findings are best mended, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from backfill.ui.doctor.checks import hosts, machine, slurm
from backfill.ui.doctor.facts import Facts
from backfill.ui.doctor.findings import Finding, Grade

Look = Callable[[Facts], Iterator[Finding]]

CHECKS: tuple[tuple[str, Look], ...] = (
    ("Slurm answers the daemon's user", slurm.slurm_answers),
    ("guests get the key that Slurm believes", machine.credentials),
    ("programs are installed", machine.programs),
    ("policy file and cluster agree", slurm.fits_the_file),
    ("slurm.conf has what we need", slurm.settings),
    ("a guest's slurmd can track its jobs", slurm.guests_cgroups),
    ("low-priority partitions have our nodes", slurm.partitions),
    ("the hosts' own nodes are open", slurm.host_nodes),
    ("copies of slurm.conf are alike", slurm.copies),
    ("journal, socket and lease", machine.places),
    ("hosts answer", hosts.reach),
    ("hosts can run such guests", hosts.machines),
    ("names are free", hosts.guests),
    ("directories can be written", machine.directories),
    ("images are there and whole", machine.images),
    ("hosts see directories and images", hosts.shared_files),
    ("addresses are free, and lead to slurmctld", machine.addresses),
    ("a hook is heard", slurm.hooks),
    ("users can ask for machines of their own", slurm.options),
    ("Salt", machine.salt),
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What each check found, by its title, in order."""

    findings: tuple[tuple[str, tuple[Finding, ...]], ...]

    @property
    def all(self) -> list[Finding]:
        """Every finding."""
        return [finding for _, found in self.findings for finding in found]

    def has(self, grade: Grade) -> bool:
        """Return True if a finding is of this grade."""
        return any(finding.grade is grade for finding in self.all)


def examine(facts: Facts) -> Diagnosis:
    """Let every check look at the facts."""
    return Diagnosis(tuple((title, tuple(look(facts))) for title, look in CHECKS))
