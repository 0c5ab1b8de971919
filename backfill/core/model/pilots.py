"""Pilots that we send ourselves: how they are told from others, which there are, and what their pool says."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.cluster import ENDED, Job

_MARK, _NAME = "backfill: pilot ", "backfill-pilot-"


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """A pool's own word, or the lack of it. `seen_s`: when the last answer began; 0: none came yet."""

    seen_s: float = 0.0
    idle: int = 0  # payloads that wait for a pilot
    problem: str = ""  # why the latest question has no answer
    silent: tuple[str, ...] = ()  # access points without an answer: more may wait there


def mark_of(slot: int) -> str:
    """Return the comment by which the pilot of a slot is known in Slurm."""
    return f"{_MARK}{slot}"


def name_of(slot: int) -> str:
    """Return the job name of the pilot of a slot: Slurm lets one of a name work at a time."""
    return f"{_NAME}{slot}"


def slot_of_name(name: str) -> int | None:
    """Return the slot that a job of this name has; None: none."""
    number = name.removeprefix(_NAME)
    return int(number) if number != name and number.isdecimal() else None


def slot_of(name: str, comment: str) -> int | None:
    """Return whose slot's pilot a job with these says to be; None: of none."""
    slot = slot_of_name(name)
    return slot if slot is not None and comment == mark_of(slot) else None


class PilotIndex:
    """Pilots that are sent on demand, and what their pool has said. Only the world changes it."""

    def __init__(self) -> None:
        self.pool = PoolPicture()
        self.told: dict[str, tuple[int, float]] = {}  # job -> restarts, and when its room goes
        self._jobs: dict[str, Job] = {}  # those of a pilot's name, ended ones as well

    def of(self, user: str) -> list[Job]:
        """Return the user's pilots that Slurm shows, in order of their slots and numbers."""
        theirs = [job for job in self._jobs.values() if job.user == user]
        found = [job for job in theirs if slot_of(job.name, job.comment) is not None]
        return sorted(found, key=lambda job: (slot_of(job.name, job.comment) or 0, job.raw_id))

    def in_the_way(self, user: str) -> dict[int, Job]:
        """Return jobs of the user that are no pilots and have the name of one, by its slot."""
        theirs = (job for job in self._jobs.values() if job.user == user)
        living = [job for job in theirs if job.state not in ENDED or job.holds_nodes]
        found = [job for job in living if slot_of(job.name, job.comment) is None]
        return {slot_of_name(job.name) or 0: job for job in sorted(found, key=lambda job: -job.raw_id)}

    def put(self, job: Job) -> None:
        """Take in a new or changed job, if it has the name of a pilot."""
        if slot_of_name(job.name) is not None:
            self._jobs[job.id] = job

    def drop(self, job_id: str) -> None:
        """Forget a job."""
        self._jobs.pop(job_id, None)
        self.told.pop(job_id, None)
