"""A pool outside the simulated cluster: payloads that wait, and pilots that take them one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.clock import WallClock
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.slurm.model import SimJob
from backfill.ports.errors import UnreachableError
from backfill.ports.pools import PayloadRun, PoolObservation

# A pilot that finds no payload ends after so long.
_NOCLAIM_S = 20.0


@dataclass(slots=True)
class _Payload:
    """A payload in the pilot's run in which it is now."""

    number: int
    run_s: float
    tries: int = 0
    began_s: float = 0.0
    restarts: int = 0


class SimulatedPool:
    """See PayloadPool. Each run of a pilot takes one payload, and ends with it."""

    def __init__(self, events: EventQueue, jobs: Mapping[str, SimJob], wall: WallClock) -> None:
        self.silent = False
        self._wall = wall
        self._events = events
        self._jobs = jobs
        self._waiting: deque[_Payload] = deque()
        self._taken: dict[str, _Payload] = {}  # by the pilot's job
        self._runs: list[PayloadRun] = []
        self._payloads = 0

    def add(self, run_s: float) -> None:
        """Let one more payload wait that works for so long."""
        self._payloads += 1
        self._waiting.append(_Payload(self._payloads, run_s))

    def begin(self, job: SimJob) -> None:
        """A pilot begins to work on its node: it takes the payload that has waited longest."""
        self._settle()
        job.run_s = _NOCLAIM_S
        if self._waiting:
            payload = self._taken[job.id] = self._waiting.popleft()
            payload.tries += 1
            payload.began_s, payload.restarts = self._events.now_s, job.restarts
            job.run_s = payload.run_s

    def observe(self) -> PoolObservation:
        """See PayloadPool."""
        if self.silent:
            raise UnreachableError("the simulated pool", "does not answer")
        self._settle()
        return PoolObservation(self._wall.at(self._events.now_s), len(self._waiting), tuple(self._runs))

    def close(self) -> None:
        """Nothing to give back."""

    def _settle(self) -> None:
        """See what has become of the pilots that have payloads."""
        for job_id, payload in tuple(self._taken.items()):
            job = self._jobs.get(job_id)
            same = job is not None and job.restarts == payload.restarts
            if job is not None and same and job.state in (JobState.RUNNING, JobState.SUSPENDED):
                continue
            del self._taken[job_id]
            done = job is not None and same and job.state is JobState.COMPLETED
            ended_s = self._events.now_s
            self._runs.append(
                PayloadRun(
                    f"{payload.number}#{payload.tries}",
                    job_id,
                    "" if job is None else ",".join(job.nodes),
                    ended_s,
                    payload.run_s if done else ended_s - payload.began_s,
                    done,
                )
            )
            if not done:
                self._waiting.append(payload)
