"""A pool outside the simulated cluster: payloads that wait, and pilots that take them one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.clock import WallClock
from backfill.drivers.simulated.events import EventQueue, SimEvent
from backfill.drivers.simulated.hypervisor.hardware import SimRun
from backfill.drivers.simulated.slurm.model import SimJob
from backfill.ports.errors import UnreachableError
from backfill.ports.pools import PayloadRun, PoolObservation

# A pilot that finds no payload ends after so long.
_NOCLAIM_S = 20.0
# A run of a pilot: its job, and how often that has been started anew.
PilotRun = tuple[str, int]


@dataclass(slots=True)
class _Payload:
    """A payload, and the run of a pilot in which it is now."""

    number: int
    run_s: float
    tries: int = 0
    began_s: float = 0.0
    told: int = 0  # signals that the pilot had had by then
    silence: SimEvent | None = None  # what happens if the pilot stays silent


@dataclass(frozen=True, slots=True)
class PayloadsKept:
    """What the pool knows of all its payloads, by their numbers.

    `by_run`: of each run of a pilot that had one, its payload, and whether it is done there. `twice`:
    a sentence for each that was at work, or done, a second time.
    """

    there: int
    done: tuple[int, ...]
    by_run: Mapping[PilotRun, tuple[int, bool]]
    twice: tuple[str, ...]


class SimulatedPool:
    """See PayloadPool. Each run of a pilot takes one payload, and ends with it.

    A pilot that has been silent for `gives_up_s` is given up, and its payload waits again; None: only
    when Slurm has ended the pilot. One that is told to go says so, and its payload waits at once.
    """

    def __init__(self, events: EventQueue, jobs: Mapping[str, SimJob], wall: WallClock) -> None:
        self.silent = False
        self.gives_up_s: float | None = None
        self._wall = wall
        self._events = events
        self._jobs = jobs
        self._waiting: deque[_Payload] = deque()
        self._taken: dict[PilotRun, _Payload] = {}
        self._given_up: dict[PilotRun, int] = {}
        self._by_run: dict[PilotRun, tuple[int, bool]] = {}
        self._runs: list[PayloadRun] = []
        self._done: list[int] = []
        self._twice: list[str] = []
        self._payloads = 0

    def add(self, run_s: float) -> None:
        """Let one more payload wait that works for so long."""
        self._payloads += 1
        self._waiting.append(_Payload(self._payloads, run_s))

    def begin(self, job: SimJob) -> None:
        """Let a pilot begin to work on its node: it takes the payload that has waited longest."""
        self._settle()
        job.run_s = _NOCLAIM_S
        if self._waiting:
            payload = self._taken[job.id, job.restarts] = self._waiting.popleft()
            payload.tries += 1
            payload.began_s, payload.told, payload.silence = self._events.now_s, len(job.signals), None
            self._by_run[job.id, job.restarts] = payload.number, False
            job.run_s = payload.run_s

    def heard(self, run: SimRun, *, answers: bool) -> None:
        """Hear a pilot again, or no more: its machine or its processes stand still, or are gone."""
        copy = (run.job, run.restart)
        if answers:
            if copy in self._given_up:
                self._twice.append(
                    f"payload {self._given_up[copy]} went on in pilot {run.job}, given up before"
                )
            payload = self._taken.get(copy)
            if payload is not None and payload.silence is not None:
                payload.silence.cancel()
                payload.silence = None
        elif copy in self._taken and self.gives_up_s is not None:
            payload = self._taken[copy]
            if payload.silence is None:
                payload.silence = self._events.after(self.gives_up_s, partial(self._give_up, copy))

    def observe(self) -> PoolObservation:
        """See PayloadPool."""
        if self.silent:
            raise UnreachableError("the simulated pool", "does not answer")
        self._settle()
        return PoolObservation(self._wall.at(self._events.now_s), len(self._waiting), tuple(self._runs))

    def kept(self) -> PayloadsKept:
        """Return what has become of all payloads until now."""
        self._settle()
        there = [*self._done, *(payload.number for payload in (*self._waiting, *self._taken.values()))]
        twice = tuple(self._twice) + tuple(self._several(there))
        return PayloadsKept(len(set(there)), tuple(self._done), dict(self._by_run), twice)

    def close(self) -> None:
        """Nothing to give back."""

    @staticmethod
    def _several(there: list[int]) -> Iterator[str]:
        for number in sorted({number for number in there if there.count(number) > 1}):
            yield f"payload {number} is in the pool's books more than once"

    def _settle(self) -> None:
        """See what has become of the pilots that have payloads."""
        for copy, payload in tuple(self._taken.items()):
            job = self._jobs.get(copy[0])
            same = job is not None and job.restarts == copy[1]
            if job is not None and same and job.state in (JobState.RUNNING, JobState.SUSPENDED):
                continue
            if job is not None and same and job.state is JobState.COMPLETED:
                self._end(copy, done=True)
            elif payload.silence is None or (job is not None and len(job.signals) > payload.told):
                self._end(copy, done=False)

    def _give_up(self, copy: PilotRun) -> None:
        """Give up a pilot that was silent for too long, whatever becomes of it later."""
        self._settle()
        if copy in self._taken:
            self._given_up[copy] = self._taken[copy].number
            self._end(copy, done=False)

    def _end(self, copy: PilotRun, *, done: bool) -> None:
        """Book the end of a payload's run."""
        payload, job = self._taken.pop(copy), self._jobs.get(copy[0])
        if payload.silence is not None:
            payload.silence.cancel()
        ended_s = self._events.now_s
        worked_s = payload.run_s if done else ended_s - payload.began_s
        node = "" if job is None else ",".join(job.nodes)
        name = f"{payload.number}#{payload.tries}"
        self._runs.append(PayloadRun(name, copy[0], node, ended_s, worked_s, done))
        self._by_run[copy] = payload.number, done
        if done:
            self._done.append(payload.number)
        else:
            self._waiting.append(payload)
