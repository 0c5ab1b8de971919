"""The PayloadPool contract: what waits is counted, and each run of a payload is told once it has ended."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import pytest

from backfill.ports.errors import DriverError
from backfill.ports.pools import PayloadPool, PayloadRun


class PoolRig(Protocol):
    """A pool in which nothing waits, and a cluster whose pilots it takes."""

    @property
    def pool(self) -> PayloadPool: ...

    def add(self, run_s: float) -> None:
        """Let one more payload wait that works for so long."""

    def pilot(self) -> str:
        """Begin a pilot that takes what waits; the number of its job in Slurm."""

    def end(self, pilot: str) -> None:
        """End the pilot's run while its payload works."""

    def at_work(self) -> None:
        """Let time pass until a payload is at work."""

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until `holds`; fails the test when that takes too long."""

    def silent(self) -> AbstractContextManager[None]:
        """Inside, the pool does not answer."""


def new(rig: PoolRig, known: set[str]) -> list[PayloadRun]:
    return [run for run in rig.pool.observe().runs if run.id not in known]


class PayloadPoolContract:
    """See `backfill.ports.pools`."""

    def test_what_waits_is_counted(self, rig: PoolRig) -> None:
        """One after the other; nothing waits at first."""
        rig.until(lambda: rig.pool.observe().idle == 0)
        rig.add(2.0)
        rig.add(2.0)
        rig.until(lambda: rig.pool.observe().idle == 2)

    def test_a_payload_that_is_done_is_told(self, rig: PoolRig) -> None:
        """With the pilot in which it was, how long it worked, and always by the same id."""
        known = {run.id for run in rig.pool.observe().runs}
        rig.add(3.0)
        pilot = rig.pilot()
        rig.until(lambda: bool(new(rig, known)))
        (run,) = new(rig, known)
        assert (run.pilot, run.done) == (pilot, True)
        assert run.node
        assert run.worked_s >= 3.0
        assert run.ended_s > 0.0
        assert new(rig, known) == [run]
        assert rig.pool.observe().idle == 0

    def test_a_run_that_came_to_nothing_is_told(self, rig: PoolRig) -> None:
        """The payload waits again, and what it had worked was lost."""
        known = {run.id for run in rig.pool.observe().runs}
        rig.add(1000.0)
        pilot = rig.pilot()
        rig.at_work()
        rig.end(pilot)
        rig.until(lambda: bool(new(rig, known)))
        (run,) = new(rig, known)
        assert (run.pilot, run.done) == (pilot, False)
        rig.until(lambda: rig.pool.observe().idle == 1)

    def test_a_pool_that_does_not_answer(self, rig: PoolRig) -> None:
        """An error with one sentence; it answers again when it can."""
        with rig.silent(), pytest.raises(DriverError):
            rig.pool.observe()
        rig.until(lambda: rig.pool.observe().idle == 0)
