"""The daemon's time never goes back, whatever the machine's clock does."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from backfill.core.changes import NodeManaged
from backfill.core.cluster import JobState
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.records import encode, remembered
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.clock import SteadyClock
from backfill.engine.daemon import Daemon, Pace
from backfill.engine.looking import (
    Outside,
    guests_now,
    observe_cluster,
    observe_host,
    observe_nodes,
)
from tests.unit.living_daemon import LivingDaemon, displaced, policies


class Machine:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_000_000.0, 5.0
        self.clock = SteadyClock(lambda: self.wall_s, lambda: self.passed_s)

    def passes(self, by_s: float) -> float:
        """Time goes by; what the daemon's clock says then."""
        self.wall_s += by_s
        self.passed_s += by_s
        return self.clock.now() - 1_000_000.0


def test_it_is_the_machines_clock_also_when_that_is_set_forward() -> None:
    """Nobody can know what was missed, so it is believed."""
    machine = Machine()
    assert machine.passes(2.0) == 2.0
    machine.wall_s += 100.0
    assert machine.passes(1.0) == 103.0
    assert machine.clock.ahead() == 0.0


def test_set_back_it_goes_on_more_slowly_until_both_agree(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every deadline comes, and what is read now is newer than what was read before."""
    machine = Machine()
    machine.passes(20.0)
    machine.wall_s -= 10.0
    assert machine.passes(0.0) == 20.0
    assert machine.clock.ahead() == 10.0
    assert machine.passes(10.0) == pytest.approx(29.0)
    assert machine.clock.ahead() == pytest.approx(9.0)
    assert machine.passes(90.0) == pytest.approx(110.0)
    assert machine.clock.ahead() == pytest.approx(0.0)
    assert machine.passes(5.0) == 115.0
    told = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert [r.getMessage() for r in told] == [
        "the machine's clock went back by 10.0 s; see to its time server"
    ]


class Ahead:
    """The clock of a daemon whose machine's clock went back by half a minute."""

    def __init__(self, sim: SimulatedWorld) -> None:
        self._sim = sim
        self.ahead_s = 30.0

    def now(self) -> float:
        return self._sim.now_s + self.ahead_s

    def ahead(self) -> float:
        return self.ahead_s


def test_a_daemon_that_is_ahead_believes_what_it_reads(tmp_path: Path) -> None:
    """Eviction and return go on, and guests get the time that Slurm and munge go by."""
    daemon = LivingDaemon(tmp_path, clock=Ahead)
    try:
        low, high = displaced(daemon)
        daemon.sim.user_cancel(high)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert daemon.sim.job(low).state is JobState.RUNNING
        woken = [r.body for r in daemon.journal.read() if r.body.get("t") == "Woken"]
        assert abs(float(str(woken[0]["correction_s"]))) < 10.0
        assert daemon.sim.audit() == []
    finally:
        daemon.stop()


def test_pictures_are_told_in_the_daemons_time() -> None:
    """Drivers go by the machine's clock; compared with what was seen before it would be old."""
    sim = SimulatedWorld()
    sim.add_host("bm1", cpus=1)
    outside = Outside(sim.slurm, {"bm1": sim.provider}, Ahead(sim))
    seen = (observe_cluster(outside), observe_nodes(outside, ["bm1"]), observe_host(outside, "bm1"))
    assert [picture.seen_s for picture in seen] == [sim.now_s + 30.0] * 3
    assert guests_now(outside) == sim.now_s


def test_a_daemon_too_far_ahead_ends_to_be_started_again() -> None:
    """Time of day would be wrong for hours; the sentence says what to do."""
    sim = SimulatedWorld()
    clock = Ahead(sim)
    clock.ahead_s = 3600.0
    journal = MemoryJournal()
    daemon = Daemon(policies(), Outside(sim.slurm, {}, clock), journal, Pace())
    with pytest.raises(RuntimeError, match="went back by more than 60 s: start the daemon again"):
        daemon.run()
    assert [r.body["event"] for r in journal.read()][-1] == "stop"


def test_a_restarted_daemon_waits_for_no_moment_that_was_never_to_come() -> None:
    """Written while the clock was a year ahead: the order of things stays, from now back."""
    year_s, now_s = 365 * 86400.0, 1_000_000.0
    node = ManagedNode(
        "vn1", "10.77.1.1/16", "bm1", 1, Phase.RETURNING, now_s + year_s - 9, now_s - 500,
        woken_s=now_s + year_s - 2, not_before_s=now_s + year_s + 5,
    )  # fmt: skip
    (change,) = remembered([encode(NodeManaged(node))], now_s)
    assert isinstance(change, NodeManaged)
    found = change.node
    assert (found.since_s, found.woken_s, found.created_s) == (now_s - 7, now_s, now_s - 500)
    assert found.not_before_s == now_s + 7
    assert remembered([encode(NodeManaged(found))], now_s) == [change]
