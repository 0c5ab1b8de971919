"""Devices: what a job may ask for by a constraint, and gets plugged into its instances."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from backfill.core.model.cluster import Job
from backfill.core.model.devices import DeviceLoan, Sharing
from backfill.core.model.keys import about, key

_NAMES = re.compile(r"[A-Za-z0-9_.-]+")  # as in environments


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """What each instance of a job that asks for this gets, for as long as the job is there."""

    name: str = field(metadata=about("The feature's name, as in sbatch --constraint."))
    functions: int = key(0, "Virtual functions of the host's SR-IOV cards.")
    region_mb: int = key(
        0, "Memory (ivshmem) that the job's instances on one host share, MB: a power of two; 0: none."
    )
    sharing: Sharing = key(Sharing.ONE_JOB, "Whose jobs may hold devices of one host at the same time.")

    @property
    def loan(self) -> DeviceLoan:
        """What an instance gets by it."""
        regions = (self.region_mb,) if self.region_mb else ()
        return DeviceLoan(self.name, self.functions, regions, self.sharing)

    @property
    def scarce(self) -> bool:
        """Return True if only nodes offer it that were made for jobs that ask for it."""
        return self.functions > 0 or self.sharing is not Sharing.ANYONE


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices that jobs get by themselves. Every host must be able to give shared memory."""

    entries: tuple[DeviceRule, ...] = key((), "One entry for each kind.")

    def asked(self, job: Job) -> DeviceRule | None:
        """Return what the job's constraint asks for."""
        if not self.entries or not job.features:
            return None
        words = set(_NAMES.findall(job.features))
        return next((rule for rule in self.entries if rule.name in words), None)

    @property
    def features(self) -> tuple[str, ...]:
        """All that jobs can ask for."""
        return tuple(rule.name for rule in self.entries)

    @property
    def most(self) -> int:
        """The most devices that one node can hold at a time: it holds those of one job."""
        return max((rule.functions + bool(rule.region_mb) for rule in self.entries), default=0)

    @property
    def scarce(self) -> bool:
        """Return True if nodes differ in what they offer, because not every job may have it there."""
        return any(rule.scarce for rule in self.entries)

    def scarce_for(self, job: Job) -> str:
        """Return the entry that the job asks for, where only some nodes offer it; or an empty text."""
        rule = self.asked(job) if self.scarce else None
        return rule.name if rule is not None and rule.scarce else ""

    def offered(self, scarce: Collection[str]) -> tuple[str, ...]:
        """Features of a node that offers these of what is scarce."""
        return tuple(rule.name for rule in self.entries if not rule.scarce or rule.name in scarce)

    def sharing(self, names: Collection[str]) -> Sharing:
        """With whom a node that offers these may share the devices of its host."""
        rules = {rule.sharing for rule in self.entries if rule.name in names}
        return next((rule for rule in Sharing if rule in rules), Sharing.ANYONE)

    def region_mb(self, name: str) -> int:
        """Memory that the instances of a job share which asks for this."""
        return max((rule.region_mb for rule in self.entries if rule.name == name), default=0)

    def functions(self, names: Collection[str]) -> int:
        """Virtual functions that a node may hold which offers these: it has one job at a time."""
        return max((rule.functions for rule in self.entries if rule.name in names), default=0)
