"""The journal's disk is full or dead: hosts are given back all the same, and nothing is lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from backfill.core.model.actions import DriverAction
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.ladder import RungRule
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import RefusedError
from backfill.ports.storage import Record
from backfill.sim.replay.journal import replay_journal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.property.days import Day, policies

Ladder = tuple[RungRule, ...]
PAUSE = (RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.REQUEUE))
SAVE = (RungRule(Rung.SUSPEND, within_s=5.0), RungRule(Rung.REQUEUE))
MOVE = (RungRule(Rung.MIGRATE, within_s=20.0), RungRule(Rung.REQUEUE))
SLOW = (RungRule(Rung.THROTTLE, within_s=1.0, for_s=30.0), RungRule(Rung.REQUEUE))
LAST = (RungRule(Rung.REQUEUE),)


class Disk(MemoryJournal):
    """A journal whose disk may be full."""

    full = False

    def append(self, records: Iterable[Record]) -> None:
        if self.full:
            raise RefusedError("journal", "the disk is full", "make room")
        super().append(records)


class Watched(Rehearsal):
    """Notes what is begun while the disk is full."""

    def __init__(self, day: Day, disk: Disk) -> None:
        self.disk, self.begun = disk, set[str]()
        super().__init__(day.sim, day.run.policies, disk)

    def _begin(self, action: DriverAction) -> None:
        if self.disk.full:
            self.begun.add(action.key.partition(":")[0])
        super()._begin(action)


class Site:
    """Two low-priority jobs at work on their instances."""

    def __init__(self, ladder: Ladder, jobs: int = 2, requeue: bool = True) -> None:
        day = Day(policies(ladder))
        day.run.kill()
        self.sim, self.disk = day.sim, Disk()
        self.run = day.run = Watched(day, self.disk)
        self.lows = [self.sim.submit("htc", 300.0, requeue=requeue) for _ in range(jobs)]
        running = JobState.RUNNING
        self.run.until(lambda: all(self.sim.job(j).state is running for j in self.lows), 120.0)
        self.run.run(10.0)

    def want_hosts(self, run_s: float) -> list[str]:
        """A job for each host on which an instance is."""
        hosts = sorted({m.host for m in self.run.world.managed.values()})
        return [self.sim.submit("batch", run_s, required_nodes=(host,)) for host in hosts]

    def completed(self, jobs: list[str]) -> bool:
        return all(self.sim.job(j).state is JobState.COMPLETED for j in jobs)

    def restarts(self) -> int:
        return sum(self.sim.job(j).restarts for j in self.lows)

    def audit(self) -> None:
        """Nothing went wrong, and the journal tells all of it."""
        assert self.sim.audit() == []
        found = replay_journal(self.run.journal.read(), self.run.policies)
        assert found.differences == []
        assert found.plans > 0


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("ladder", [PAUSE, SAVE, MOVE, SLOW, LAST])
def test_a_full_disk_stops_no_eviction_and_loses_no_work(ladder: Ladder, requeue: bool) -> None:
    """Whatever the ladder: instances stop, the job starts in time, and all goes on later."""
    site = Site(ladder, requeue=requeue)
    site.disk.full = True
    highs = site.want_hosts(30.0)
    site.run.run(120.0)
    assert site.run.alive
    assert site.run.begun
    assert site.run.begun <= {"PauseInstance", "ThrottleInstance"}
    assert site.completed(highs)
    assert site.restarts() == 0
    assert all(site.sim.job(j).active for j in site.lows)
    assert "the disk is full" in str(site.run.cycle.last.refusals)
    site.disk.full = False
    site.run.run(1200.0)
    assert site.completed(site.lows)
    assert site.restarts() == 0
    assert not site.run.world.barred
    site.audit()


def test_nothing_is_made_while_nothing_can_be_written() -> None:
    """Waiting jobs wait; what was just to be made is not given up, however long it takes."""
    site = Site(PAUSE, jobs=0)
    site.disk.full = True
    job = site.sim.submit("htc", 20.0)
    site.run.run(300.0)
    assert site.run.begun == set()
    assert [m.phase for m in site.run.world.managed.values()] == [Phase.BOOTING]
    site.disk.full = False
    site.run.run(300.0)
    assert site.completed([job])
    site.audit()


def test_a_return_outlasts_a_dead_disk() -> None:
    """Deadlines do not run meanwhile: what was under way goes on where it was."""
    site = Site(PAUSE)
    highs = site.want_hosts(30.0)
    managed = site.run.world.managed
    site.run.until(lambda: any(m.phase is Phase.RETURNING for m in managed.values()), 90.0)
    site.disk.full = True
    site.run.run(1000.0)
    assert any(m.phase is Phase.RETURNING for m in managed.values())
    site.disk.full = False
    site.run.run(900.0)
    assert site.completed(site.lows + highs)
    assert site.restarts() == 0
    site.audit()


def test_a_daemon_killed_while_its_disk_was_full_loses_nothing() -> None:
    """The next one finds on the hypervisor what was never written."""
    site = Site(PAUSE)
    site.disk.full = True
    highs = site.want_hosts(60.0)
    site.run.run(20.0)
    site.run.kill()
    site.disk.full = False
    site.run.start()
    site.run.run(900.0)
    assert site.completed(site.lows + highs)
    assert site.restarts() == 0
    assert site.sim.audit() == []


def test_what_cannot_be_kept_is_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: observations go first, and a replay does not run over the hole."""
    monkeypatch.setattr("backfill.engine.cycle._MOST_UNWRITTEN", 50)
    site = Site(PAUSE)
    site.disk.full = True
    for _ in range(20):
        site.sim.submit("batch", 1.0)
        site.run.run(10.0)
    site.disk.full = False
    site.run.run(10.0)
    assert any(r.body.get("event") == "gap" for r in site.run.journal.read())
    site.run.kill()
    site.run.start()
    site.run.run(400.0)
    assert site.completed(site.lows)
    found = replay_journal(site.run.journal.read(), site.run.policies)
    assert (found.lives, found.differences) == (1, [])


def test_an_old_journal_on_a_full_disk_stops_no_eviction() -> None:
    """By the books it stands still, and it works: that cannot be written, and its host is given back."""
    site = Site(PAUSE)
    sim, run = site.sim, site.run
    highs = site.want_hosts(20.0)
    run.until(lambda: run.world.fleet.count_in(Phase.PARKED) == len(highs), 30.0)
    old = list(run.journal.read())
    run.until(lambda: run.world.fleet.count_in(Phase.READY) == len(site.lows), 90.0)
    run.run(10.0)
    run.kill()
    site.disk = run.disk = Disk()
    site.disk.append(old)
    run.journal = site.disk
    site.disk.full = True
    run.start()
    run.run(15.0)
    highs += site.want_hosts(20.0)
    run.until(lambda: site.completed(highs), 60.0)
    assert "PauseInstance" in run.begun
    site.disk.full = False
    run.until(lambda: site.completed(site.lows), 900.0)
    assert site.restarts() == 0
    assert sim.audit() == []
