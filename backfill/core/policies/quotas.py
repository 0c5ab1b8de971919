"""Quotas: how many CPUs of instances the jobs of one account, user or QOS are worth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from backfill.core.model.cluster import Job
from backfill.core.model.keys import about, key
from backfill.core.model.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class Quota:
    """A ceiling for the jobs that match everything given here."""

    cpus: int = field(metadata=about("CPUs on instances, running and asked for, at the same time.", least=0))
    account: str = key("", "Jobs of this account; empty: of all.")
    user: str = key("", "Of which user.")
    qos: str = key("", "With which QOS.")

    def covers(self, job: Job) -> bool:
        """Return True if the job counts here."""
        return self.account in ("", job.account) and self.user in ("", job.user) and self.qos in ("", job.qos)

    def __str__(self) -> str:
        whose = (("account", self.account), ("user", self.user), ("QOS", self.qos))
        return " and ".join(f"{what} {name}" for what, name in whose if name) or "everybody"


@dataclass(frozen=True, slots=True)
class Quotas:
    """Ceilings for demand: no instance is made for a job above one."""

    ceilings: tuple[Quota, ...] = key((), "Each ceiling holds by itself.")

    def admit(self, pending: Iterable[Job], running: Iterable[Job]) -> tuple[list[Job], dict[str, Reason]]:
        """Return the pending jobs that count, and for the others (by id) which ceiling is reached.

        Those that Slurm would start first are admitted first: by priority, then as they came.
        """
        used = [0] * len(self.ceilings)
        for job in running:
            self._add(used, job)
        admitted: list[Job] = []
        refused: dict[str, Reason] = {}
        for job in sorted(pending, key=lambda j: (-j.priority, j.submit_s, j.raw_id, j.id)):
            full = self._full(used, job)
            if full is None:
                self._add(used, job)
                admitted.append(job)
            else:
                refused[job.id] = because(Code.QUOTA, cpus=full.cpus, whose=str(full))
        return admitted, refused

    def _add(self, used: list[int], job: Job) -> None:
        for number, quota in enumerate(self.ceilings):
            if quota.covers(job):
                used[number] += job.cpus

    def _full(self, used: Sequence[int], job: Job) -> Quota | None:
        for number, quota in enumerate(self.ceilings):
            if quota.covers(job) and used[number] + job.cpus > quota.cpus:
                return quota
        return None
