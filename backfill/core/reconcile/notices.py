"""Which owners are told now why their jobs still wait, and in what words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from heapq import nsmallest

from backfill.core.model.actions import TellJob
from backfill.core.model.cluster import OUR_REASON, Job, JobState
from backfill.core.model.refusals import Aside, Code, Goal, Reason, Refusal, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import Picture, stale
from backfill.core.policy import PolicySet
from backfill.core.reconcile.scaling import waiting_low

_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Told:
    """What a job's owner was told, and when (epoch seconds)."""

    at_s: float
    reason: Reason
    text: str = ""


def tell_waiting(
    world: Picture, policies: PolicySet, refusals: Sequence[Refusal], told: Mapping[str, Told]
) -> tuple[list[TellJob], dict[str, Told]]:
    """Return the sentences for this minute, and what all who still wait have been told then.

    Who has begun loses the sentence again.

    Each sentence is an update of a job in slurmctld, so they are few: those who wait longest come
    first, and nobody is told the same twice. What Slurm itself says (a dependency, a hold, a date)
    is not said again.
    """
    notice = policies.notice
    if not notice.admin_comment or not notice.waiting_after_s or stale(world, "slurm", policies.limits):
        return [], dict(told)
    begun = _begun_of(world, told)
    # Unless something else stands there by now.
    words = [
        TellJob(
            subject="", generation=0, reason="it has started", job_id=target, text="", over=told[target].text
        )
        for target in begun[: notice.waiting_per_min]
    ]
    left = {target: said for target, said in told.items() if target not in begun}
    more, kept = _told_now(world, policies, refusals, left, notice.waiting_per_min - len(words))
    later = {target: told[target] for target in begun[len(words) :]}
    return words + more, later | kept


def _told_now(
    world: Picture, policies: PolicySet, refusals: Sequence[Refusal], told: Mapping[str, Told], most: int
) -> tuple[list[TellJob], dict[str, Told]]:
    """Return the sentences for those who wait, `most` at most."""
    notice = policies.notice
    own = {r.subject.removeprefix("job "): r.reason for r in refusals if r.wanted is Goal.INSTANCE}
    common = _common(refusals)
    if not own and common is None:
        return [], dict(told)
    jobs = _patient(world, policies)
    kept = {target: said for target, said in told.items() if target in jobs}
    due = []
    for target, job in jobs.items():
        reason = own.get(job.id, common)
        last = kept.get(target)
        if reason and (last is None or not _known(world.now_s, notice.again_s, last, reason)):
            due.append((max(job.submit_s, job.eligible_s), job.raw_id, target, reason))
    words = []
    for _, _, target, reason in nsmallest(most, due):
        text = _sentence(world.now_s - world.ahead_s, sentence(reason))
        kept[target] = Told(world.now_s, reason, text)
        aloud = notice.terminal and jobs[target].interactive
        words.append(
            TellJob(
                subject="", generation=0, reason="its owner may ask", job_id=target, text=text, aloud=aloud
            )
        )
    return words, kept


def _begun_of(world: Picture, told: Mapping[str, Told]) -> list[str]:
    """Return those who were told that they wait and have begun; of an array, any task."""
    if not told:
        return []
    begun: set[str] = set()
    for job in world.jobs.values():
        if job.active:
            begun |= {job.id, job.id.partition("_")[0]}
    return [target for target in told if target in begun]


def _known(now_s: float, again_s: float, last: Told, reason: Reason) -> bool:
    """Return True if its owner knows: told the same, other numbers aside, or told not long ago."""
    return now_s - last.at_s < again_s or last.reason.gist == reason.gist


def _sentence(clock_s: float, reason: str) -> str:
    """Say of what time it speaks: it stays there for a while when the job has started."""
    at = datetime.fromtimestamp(clock_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"{OUR_REASON} as of {at} it waits: {reason}"[:_LONGEST]


def _patient(world: Picture, policies: PolicySet) -> dict[str, Job]:
    """Return jobs that have waited for room long enough, by the id under which Slurm is to be told.

    Tasks that still wait together are one record of Slurm's, named by the array's number; naming a
    task would take it out of there. It stands for all tasks, so that an array of which some have
    begun is left out.
    """
    due_s = world.now_s - policies.notice.waiting_after_s
    demand, now_s = policies.demand, world.now_s
    found: dict[str, Job] = {}
    arrays = False
    for job in waiting_low(world, policies):
        if job.submit_s <= due_s and job.eligible_s <= due_s and demand.waits_for_room(job, now_s):
            target = _target(job)
            arrays = arrays or target is not job.id
            found.setdefault(target, job)
    for head in _begun(world.jobs.values()) if arrays else ():
        found.pop(head, None)
    found.pop("", None)
    return found


def _target(job: Job) -> str:
    """Empty for a further component of a heterogeneous job."""
    if job.id.isdecimal():
        return job.id
    if "+" in job.id:
        return job.id if job.id.endswith("+0") else ""
    head, _, task = job.id.partition("_")
    return head if task and str(job.raw_id) == head else job.id


def _begun(jobs: Iterable[Job]) -> Iterator[str]:
    """Arrays of which a task has a record of its own: it has begun, or was changed by itself."""
    for job in jobs:
        head, _, task = job.id.partition("_")
        if task and (str(job.raw_id) != head or job.state is not JobState.PENDING):
            yield head


def _common(refusals: Sequence[Refusal]) -> Reason | None:
    """Return why no further instance is made for anybody; None: one is on its way, or might be."""
    found = [r for r in refusals if r.wanted is Goal.NEW_INSTANCE]
    for refused in found:
        if refused.subject == "cluster":
            return refused.reason
    if not found:
        return None
    code = Counter(r.code for r in found).most_common(1)[0][0]
    example = next(r for r in found if r.code is code)
    return because(
        Code.NO_HOST_FOR_MORE,
        hosts=len(found),
        kind=code.value,
        host=Aside(example.subject),
        why=Aside(example.reason),
    )
