"""The PayloadPool contract, held by the simulated pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.pilots import mark_of, name_of
from backfill.drivers.simulated.pool import SimulatedPool
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.workload import PilotSpec
from tests.contract.payload_pool import PayloadPoolContract


class SimulatedPoolRig:
    """A host on which pilots run."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.world.add_partition("htc")
        self.world.add_host("bm1")
        self._slots = 0

    @property
    def pool(self) -> SimulatedPool:
        return self.world.pool

    def add(self, run_s: float) -> None:
        self.world.pool.add(run_s)

    def pilot(self) -> str:
        self._slots += 1
        slot = self._slots
        spec = PilotSpec(name_of(slot), mark_of(slot), "pilot", "htc", "/pilot.sh", "", 1, 3600.0)
        return self.world.slurm.submit_pilot(spec)

    def end(self, pilot: str) -> None:
        self.world.slurm.cancel_job(pilot)

    def at_work(self) -> None:
        def works() -> bool:
            jobs = self.world.slurm.observe().jobs.values()
            return any(job.state is JobState.RUNNING and not job.flags for job in jobs)

        self.until(works)

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(600):
            if holds():
                return
            self.world.clock.advance(0.5)
        raise AssertionError("it did not come within 300 simulated seconds")

    @contextmanager
    def silent(self) -> Iterator[None]:
        self.world.pool.silent = True
        yield
        self.world.pool.silent = False


class TestSimulatedPool(PayloadPoolContract):
    @pytest.fixture
    def rig(self) -> SimulatedPoolRig:
        return SimulatedPoolRig()
