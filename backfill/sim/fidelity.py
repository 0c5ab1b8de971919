"""How well a simulated run predicts a real one: the events of both, and how far they are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from backfill.core import changes as ch
from backfill.core.cluster import ENDED, Job, JobState
from backfill.core.records import decode
from backfill.ports import Record

# An event is predicted if it is so near: this many seconds, or this share of its time.
NEAR_S, NEAR_SHARE = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Deviation:
    """An event of a run that was predicted badly; `predicted_s` None: not at all. Seconds."""

    event: str
    at_s: float
    predicted_s: float | None

    def __str__(self) -> str:
        told = "never" if self.predicted_s is None else f"at {self.predicted_s:.2f} s"
        return f"{self.event}: at {self.at_s:.2f} s, predicted {told}"


def events(records: Iterable[Record], names: Mapping[str, str], start_s: float) -> dict[str, float]:
    """What happened and when, seconds after `start_s`: every job's turns, every node's phases.

    `names`: what to call jobs, by id; other jobs are left out. The n-th time of one kind has its
    number. Nodes are named as they are, so both runs need the same policy.
    """
    found: dict[str, float] = {}
    seen: dict[str, str] = {}
    for record in records:
        if record.kind != "change":
            continue
        change = decode(record.body)
        match change:
            case ch.NodeManaged():
                subject, turn = change.node.name, change.node.phase.value
            case ch.JobSeen() if change.job.id in names:
                subject, turn = names[change.job.id], _turn(change.job)
            case _:
                continue
        if seen.get(subject) == turn:
            continue
        seen[subject] = turn
        times = sum(1 for known in found if known.startswith(f"{subject} {turn} "))
        found[f"{subject} {turn} {times + 1}"] = record.at_s - start_s
    return found


def _turn(job: Job) -> str:
    if job.state in ENDED:
        return "ended"
    if job.state is JobState.PENDING:
        return "waits"
    return "stands still" if job.state is JobState.SUSPENDED else "runs"


def deviations(real: Mapping[str, float], predicted: Mapping[str, float]) -> list[Deviation]:
    """Events of the real run that were not predicted within NEAR_S or NEAR_SHARE of their time."""
    found = []
    for event, at_s in real.items():
        told_s = predicted.get(event)
        if told_s is None or abs(told_s - at_s) > max(NEAR_S, NEAR_SHARE * at_s):
            found.append(Deviation(event, at_s, told_s))
    return found
