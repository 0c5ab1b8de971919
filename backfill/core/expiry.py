"""When a kept checkpoint may go: its time is over, and Slurm shows repeatedly that nobody needs it.

That its time is over is no reason by itself. As long as Slurm holds the very run of the job that is
kept, the last whole checkpoint of that run stays, however old it is: it may be all that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from backfill.core.model.cluster import ENDED, Job
from backfill.core.model.fleet import Checkpoint
from backfill.core.policies.limits import Limits

_READINGS = 3  # of Slurm that have to agree


WINDOWS_S = (60.0, 3600.0)  # in which so many may go


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Why it may go, since when that was read, and how often."""

    reason: str
    since_s: float
    times: int = 1


@dataclass(slots=True)
class Expiry:
    """What the passes have found so far; a daemon that starts begins to count anew."""

    _known: dict[str, _Doubt] = field(default_factory=dict)
    _dropped_s: list[float] = field(default_factory=list)

    def due(
        self,
        over: Iterable[str],
        kept: Iterable[Checkpoint],
        jobs: Mapping[str, Job],
        now_s: float,
        limits: Limits,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return ids that may go, each with the reason; and those that stay although their time is over.

        `over`: ids whose time is over. `jobs`: Slurm's answer of `now_s` about the jobs of all that
        is kept. `now_s` runs on a clock that does not jump.
        """
        whole = by_id(kept)
        wanted = {identity: needless(whole[identity], whole, jobs) for identity in over if identity in whole}
        self._known = {
            identity: self._read(identity, reason, now_s)
            for identity, (reason, _) in wanted.items()
            if reason
        }
        going: dict[str, str] = {}
        staying: dict[str, str] = {}
        for identity, (reason, why_not) in wanted.items():
            known = self._known.get(identity)
            if known is None:
                staying[identity] = why_not
            elif unsure := _unsure(known, whole[identity], jobs, now_s, limits):
                staying[identity] = f"{reason}; {unsure}"
            else:
                going[identity] = reason
        return going, staying

    def _read(self, identity: str, reason: str, now_s: float) -> _Doubt:
        known = self._known.get(identity)
        if known is None or known.reason != reason:
            return _Doubt(reason, now_s)
        return _Doubt(reason, known.since_s, known.times + 1)

    def full(self, destroyed: Mapping[float, int], now_s: float, limits: Limits) -> str | None:
        """Say which limit keeps one more from going now, or None.

        `destroyed`: how many instances with work were destroyed within the last so many seconds.
        """
        most_of = (
            ("destroys_per_min", limits.destroys_per_min),
            ("destroys_per_hour", limits.destroys_per_hour),
        )
        for (name, most), within_s in zip(most_of, WINDOWS_S, strict=True):
            lately = sum(1 for at_s in self._dropped_s if at_s > now_s - within_s)
            if lately + destroyed.get(within_s, 0) >= most:
                return f"limits.{name} = {most} is reached"
        return None

    def dropped(self, identity: str, now_s: float) -> None:
        """One is gone; it counts against the limits."""
        self._known.pop(identity, None)
        self._dropped_s = [at_s for at_s in self._dropped_s if at_s > now_s - 3600.0] + [now_s]


def needless(
    parts: list[Checkpoint], every: Mapping[str, list[Checkpoint]], jobs: Mapping[str, Job]
) -> tuple[str, str]:
    """Return (why nobody needs it, ""), or ("", why somebody does)."""
    first = parts[0]
    job = jobs.get(first.job)
    if job is None:
        return f"Slurm knows nothing of job {first.job}", ""
    if job.restarts != first.restarts:
        return f"job {job.id} began anew since (restart {job.restarts})", ""
    if job.state in ENDED:
        return f"job {job.id} has ended", ""
    newer = [one for one in every.values() if _replaces(one, parts)]
    if newer:
        return f"a later one of job {job.id} is kept", ""
    return "", f"Slurm holds job {job.id}, and no later one of it is kept"


def by_id(kept: Iterable[Checkpoint]) -> dict[str, list[Checkpoint]]:
    """Return the parts of each checkpoint by its id."""
    found: dict[str, list[Checkpoint]] = {}
    for part in kept:
        found.setdefault(part.id, []).append(part)
    return found


def _replaces(one: list[Checkpoint], other: list[Checkpoint]) -> bool:
    """Return True if `one` is a later whole checkpoint of the same run."""
    first, old = one[0], other[0]
    if (first.job, first.restarts) != (old.job, old.restarts) or first.created_s <= old.created_s:
        return False
    there = {part.name for part in one}
    return there >= set(first.members) and not any(p.problem or not p.checksum for p in one)


def _unsure(
    known: _Doubt, parts: list[Checkpoint], jobs: Mapping[str, Job], now_s: float, limits: Limits
) -> str | None:
    """Say what is missing for certainty, or None."""
    needed_s = limits.sure_after_s if parts[0].job in jobs else limits.missing_s
    if known.times >= _READINGS and now_s >= known.since_s + needed_s:
        return None
    return f"believed once {_READINGS} readings of Slurm say the same for {needed_s:.0f} s"
