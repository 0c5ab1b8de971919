"""Predicts a real run of a scenario by simulation, and tells how far the two are apart."""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import median

from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.core.model.records import decode
from backfill.drivers.simulated.costs import StepCosts
from backfill.ports.storage import Record
from backfill.sim.replay.learning import learned
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.rhythm import Rhythm
from backfill.sim.scenarios.stage import SimulatedStage


def predicted(real: Outcome, known: Rhythm) -> Outcome:
    """The same story in simulation; `known`: what is known of the clocks without the journal.

    Learned are medians of what steps took, and the phases of what comes round. When anything
    happened is not taken over: that follows from the scenario and the daemon's own decisions.
    """
    scenario = replace(real.scenario, costs=StepCosts(**learned(real.records)))
    asked = {name: entry.count for name, entry in real.scenario.copies() if entry.count}
    counts = {real.ids[name]: count for name, count in asked.items() if name in real.ids}
    rhythm = heard(real.records, known, real.start_s, counts)
    return play(scenario, SimulatedStage(scenario, rhythm=rhythm))


def told(outcome: Outcome) -> dict[str, float]:
    """The events of a run: what happened, and how many seconds after its beginning."""
    names = {job_id: name for name, job_id in outcome.ids.items()}
    return events(outcome.records, names, outcome.came_s, outcome.start_s)


# An event is predicted if it is so near: this many seconds, or this share of its time.
NEAR_S, NEAR_SHARE = 0.5, 0.1
_WAITS, _RUNS = "waits", "runs"


@dataclass(frozen=True, slots=True)
class Deviation:
    """An event of a run that was predicted badly; `predicted_s` None: not at all. Seconds."""

    event: str
    at_s: float
    predicted_s: float | None

    def __str__(self) -> str:
        told = "never" if self.predicted_s is None else f"at {self.predicted_s:.2f} s"
        return f"{self.event}: at {self.at_s:.2f} s, predicted {told}"


def events(
    records: Iterable[Record], names: Mapping[str, str], came_s: Mapping[str, float], start_s: float
) -> dict[str, float]:
    """What happened and when, seconds after `start_s`: every job's turns, every node's phases.

    `names`: what to call jobs, by id; other jobs are left out. `came_s`: when each was submitted.
    The n-th time of one kind has its number. Nodes are named as they are, so both runs need the
    same policy.
    """
    book = _Turns({names[job_id]: at_s for job_id, at_s in came_s.items()}, start_s)
    for record in records:
        if record.kind != "change":
            continue
        change = decode(record.body)
        match change:
            case ch.NodeManaged():
                book.note(change.node.name, change.node.phase.value, record.at_s)
            case ch.Claimed() if change.hosts and change.job_id in names:
                book.given_s[names[change.job_id]] = change.at_s
            case ch.JobSeen() if change.job.id in names:
                book.see(names[change.job.id], change.job, record.at_s)
            case _:
                pass
    return book.found


class _Turns:
    """The daemon looks once a second, and a job may wait or run for less: whether such a turn is
    seen is chance. So a job waits from its submission on, and on a host it runs from the moment at
    which the hook told of it, seen or not.
    """

    def __init__(self, came_s: Mapping[str, float], start_s: float) -> None:
        self.found: dict[str, float] = {}
        self.given_s: dict[str, float] = {}  # when a hook told that the job has its hosts
        self._latest: dict[str, str] = {}
        self._start_s = start_s
        for name, at_s in came_s.items():
            self.note(name, _WAITS, at_s)

    def see(self, name: str, job: Job, at_s: float) -> None:
        """The job was seen."""
        turn = _turn(job)
        ran = job.state is JobState.COMPLETED and self._latest.get(name) == _WAITS
        if turn == _RUNS or ran:
            begun_s = job.start_s if ran else at_s
            self.note(name, _RUNS, self.given_s.pop(name, begun_s))
        self.note(name, turn, at_s)

    def note(self, subject: str, turn: str, at_s: float) -> None:
        """It turned out so, unless it had before."""
        if self._latest.get(subject) == turn:
            return
        self._latest[subject] = turn
        times = sum(1 for known in self.found if known.startswith(f"{subject} {turn} "))
        self.found[f"{subject} {turn} {times + 1}"] = at_s - self._start_s


def _turn(job: Job) -> str:
    if job.state in ENDED:
        return "ended"
    if job.state is JobState.PENDING:
        return _WAITS
    return "stands still" if job.state is JobState.SUSPENDED else _RUNS


def deviations(real: Mapping[str, float], predicted: Mapping[str, float]) -> list[Deviation]:
    """Events of the real run that were not predicted within NEAR_S or NEAR_SHARE of their time."""
    found = []
    for event, at_s in real.items():
        told_s = predicted.get(event)
        if told_s is None or abs(told_s - at_s) > max(NEAR_S, NEAR_SHARE * at_s):
            found.append(Deviation(event, at_s, told_s))
    return found


# Slurm sleeps a second between two looks at its queue, and then has to do some work.
_TICKS_S = tuple(1.0 + i * 0.0005 for i in range(50))


def heard(records: Iterable[Record], known: Rhythm, start_s: float, counts: Mapping[str, int]) -> Rhythm:
    """`known`, and what the journal of a run tells of its clocks.

    The tick comes from the allocations that hooks told of: its phase and period are fitted to all
    of them. `start_s`: when the story began, epoch s; `counts`: by job id, to what it counted.
    """
    ears = _Ears()
    for record in records:
        ears.hear(record)
    tick_s, tick_at_s = ears.tick(known, start_s)
    counted_s = [ears.computed_s(job_id) / count for job_id, count in counts.items()]
    return replace(
        known,
        lead_s=max(0.0, start_s - ears.begun_s),
        tick_s=tick_s,
        tick_at_s=tick_at_s,
        count_s=median(counted_s) if counted_s else 0.0,
    )


class _Ears:
    def __init__(self) -> None:
        self.begun_s = 0.0
        self._allocated_s: list[float] = []
        self._spans: dict[str, list[tuple[float, bool]]] = {}  # by job: since when it runs or not

    def hear(self, record: Record) -> None:
        if record.kind == "daemon" and record.body.get("event") == "start":
            self.begun_s = record.at_s
        if record.kind != "change":
            return
        match change := decode(record.body):
            case ch.JobSeen(job):
                runs = job.state is JobState.RUNNING
                self._spans.setdefault(job.id, []).append((record.at_s, runs))
            case ch.Claimed():
                self._allocated_s.append(change.at_s)
            case _:
                pass

    def computed_s(self, job_id: str) -> float:
        """For how long the job was seen to run."""
        spans = self._spans.get(job_id, [])
        ends = spans[1:]
        return sum(b - a for (a, runs), (b, _) in zip(spans, ends, strict=False) if runs)

    def tick(self, known: Rhythm, start_s: float) -> tuple[float, float]:
        """Period and phase."""
        times = [at_s - start_s for at_s in self._allocated_s]
        if not times:
            return known.tick_s, known.tick_at_s
        tick_s = max(_TICKS_S, key=lambda period: abs(_mean(times, period)))
        at_s = cmath.phase(_mean(times, tick_s)) / (2 * math.pi) * tick_s % tick_s
        return tick_s, at_s


def _mean(times: list[float], period: float) -> complex:
    """The mean of the times on a clock face that goes round once in `period`."""
    return sum(cmath.exp(2j * math.pi * time / period) for time in times) / len(times)
