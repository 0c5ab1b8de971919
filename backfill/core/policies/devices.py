"""Devices: what a job may ask for by a constraint, and gets plugged into its instances."""

from __future__ import annotations

import re
from dataclasses import dataclass

from backfill.core.cluster import Job
from backfill.core.devices import Sharing

_NAMES = re.compile(r"[A-Za-z0-9_.-]+")  # as in environments


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """What each instance of a job that asks for this gets, as long as the job is there."""

    # The feature's name, as in sbatch --constraint.
    name: str
    # Virtual functions of the host's SR-IOV cards.
    functions: int = 0
    # Memory (ivshmem) that the job's instances on one host share, MB: a power of two; 0: none.
    region_mb: int = 0
    # Whose jobs may hold devices of one host at the same time.
    sharing: Sharing = Sharing.ONE_JOB


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that jobs get by themselves. Every host must be able to give them."""

    # One entry for each kind.
    entries: tuple[DeviceRule, ...] = ()

    def asked(self, job: Job) -> DeviceRule | None:
        """What the job's constraint asks for."""
        if not self.entries or not job.features:
            return None
        words = set(_NAMES.findall(job.features))
        return next((rule for rule in self.entries if rule.name in words), None)

    @property
    def features(self) -> tuple[str, ...]:
        """All that jobs can ask for; every node of ours has them."""
        return tuple(rule.name for rule in self.entries)
