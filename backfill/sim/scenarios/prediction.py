"""Predicts a real run of a scenario by simulation, and tells how far the two are apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from backfill.core import changes as ch
from backfill.core.cluster import ENDED, Job, JobState
from backfill.core.records import decode
from backfill.drivers.simulated.costs import StepCosts
from backfill.ports.storage import Record
from backfill.sim.replay.learning import learned
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.rhythm import Rhythm, heard
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
