"""What is seen inside simulated guests: their states' outcome, and the processes of their jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager

from backfill.core.fleet import InstanceState
from backfill.core.readiness import Stated
from backfill.drivers.simulated.hardware import SimHost, SimInstance


class SimulatedSight(ABC):
    """A part of the provider. `unlike`: by instance, what is not as its states say."""

    _call: Callable[..., AbstractContextManager[SimHost]]

    def __init__(self) -> None:
        self.unlike: dict[str, str] = {}

    @abstractmethod
    def _instance(self, host: SimHost, name: str) -> SimInstance:
        """The instance there; NotFoundError."""

    @abstractmethod
    def _need(self, instance: SimInstance, *states: InstanceState) -> None:
        """BusyError unless it is in one of these."""

    def differs(self, host: str, name: str, stated: Stated) -> str:
        """Nothing does, but for what stands in `unlike`, and where another list was meant."""
        with self._call("differs", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            if stated.listed != f"{name}.g{instance.spec.tag.generation}":
                return "its states come to something else now than when it was made"
            return self.unlike.get(name, "")

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """One process for every job that computes there; none is ever stopped by a signal."""
        with self._call("job_processes", host, name) as found:
            self._need(instance := self._instance(found, name), InstanceState.RUNNING)
            return sum(1 for run in instance.machine.runs if run.since_s is not None), 0
