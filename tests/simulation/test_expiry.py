"""Checkpoints whose time is over: they go only when Slurm shows repeatedly that nobody needs them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.expiry import Expiry
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.checkpoints import Checkpoints
from backfill.core.policies.limits import Limits
from backfill.engine.checkpoint_order import checkpoint_order
from backfill.engine.looking import Outside
from backfill.engine.tidy import expire
from backfill.ports.errors import UnreachableError
from tests.simulation.policy_cluster import ended, one_host, play, policies, running


class Kept:
    """A simulated daemon with checkpoints of one job, and its hourly passes."""

    def __init__(self, *, run_s: float = 900.0, count: int = 1, **limits: int) -> None:
        rules = policies(
            hosts=("bm1",), checkpoints=Checkpoints(keep_s=60.0), limits=Limits(boots_at_once=12, **limits)
        )
        self.sim = one_host()
        self.run = play(self.sim, rules)
        self.job = self.sim.submit("htc", run_s)
        self.expiry = Expiry()
        self.run.until(lambda: running(self.sim, self.job), 60)
        for number in range(1, count + 1):
            self.run.until(lambda: self._order(), 60)
            self.run.until(lambda n=number: len(self.ids) == n, 120)  # type: ignore[misc]
        self.run.until(lambda: not any(m.order for m in self.run.world.managed.values()), 60)
        self.run.run(120.0)

    def _order(self) -> bool:
        job = self.run.world.jobs[self.job]
        ready = all(m.phase is Phase.READY for m in self.run.world.managed.values())
        if job.state is not JobState.RUNNING or not ready:
            return False
        _, nodes = checkpoint_order(self.run.world, self.job)
        self.run.cycle.take([ch.NodeManaged(node) for node in nodes])
        return True

    @property
    def ids(self) -> list[str]:
        return sorted({c.id for c in self.sim.provider.checkpoints()})

    def one_pass(self) -> list[str]:
        """What is left after one hourly pass; the cluster's clock goes on by a minute only."""
        outside = Outside(self.sim.slurm, {"bm1": self.sim.provider}, self.sim.clock)
        expire(self.expiry, [self.sim.provider], outside, self.run.policies, self.run.world)
        self.run.run(61.0)
        return self.ids


def test_of_a_job_that_slurm_holds_the_last_one_stays() -> None:
    """However long its time is over: it may be all that is left one day."""
    kept = Kept()
    assert [kept.one_pass() for _ in range(6)] == [kept.ids] * 6
    assert len(kept.ids) == 1
    assert kept.sim.audit() == []


def test_an_older_one_goes_when_a_later_whole_one_is_kept() -> None:
    """After three readings: saved again and again, a long job does not fill the disk."""
    kept = Kept(run_s=2000.0, count=2)
    old, new = kept.ids
    assert [kept.one_pass() for _ in range(4)] == [[old, new], [old, new], [new], [new]]
    kept = Kept(run_s=2000.0, count=2)
    kept.sim.provider._kept = {  # the later one is of no use
        key: replace(c, checksum="" if c.id == kept.ids[1] else c.checksum)
        for key, c in kept.sim.provider._kept.items()
    }
    assert len([kept.one_pass() for _ in range(4)][-1]) == 2


def test_when_its_job_has_ended_it_goes_at_the_third_reading() -> None:
    """One reading may be odd."""
    kept = Kept(run_s=200.0)
    kept.run.until(lambda: ended(kept.sim, kept.job), 900)
    assert [len(kept.one_pass()) for _ in range(4)] == [1, 1, 0, 0]
    assert kept.sim.audit() == []


def test_what_slurm_does_not_show_is_believed_late() -> None:
    """As after its memory of ended jobs: three readings, and `limits.missing_s`."""
    kept = Kept()
    read = kept.sim.slurm.read_jobs
    kept.sim.slurm.read_jobs = lambda ids: {}  # type: ignore[method-assign]
    left = [len(kept.one_pass()) for _ in range(12)]
    assert left == [1] * 10 + [0, 0]
    kept.sim.slurm.read_jobs = read  # type: ignore[method-assign]


@pytest.mark.parametrize("odd", ["silent", "empty", "late"])
def test_one_odd_answer_begins_the_count_anew(odd: str) -> None:
    """Slurm out, a reading without jobs, or another answer when asked directly before."""
    kept = Kept()
    read, asked = kept.sim.slurm.read_jobs, 0

    def strange(ids: list[str]) -> dict[str, Job]:
        nonlocal asked
        asked += 1
        if odd == "silent":
            raise UnreachableError("slurmctld", "did not answer")
        found = read(ids)
        if odd == "late" and asked < 4:  # shown as ended for three passes, and then asked again
            return {i: replace(job, state=JobState.COMPLETED) for i, job in found.items()}
        return {} if odd == "empty" and asked % 2 else found

    kept.sim.slurm.read_jobs = strange  # type: ignore[assignment,method-assign]
    assert [len(kept.one_pass()) for _ in range(12)] == [1] * 12


def test_so_many_go_within_a_minute_as_may_be_destroyed() -> None:
    """The limits of what is destroyed count them, too."""
    kept = Kept(run_s=2000.0, count=4, destroys_per_min=2)
    assert [len(kept.one_pass()) for _ in range(5)] == [4, 4, 2, 1, 1]


def test_a_daemon_that_is_blind_removes_nothing() -> None:
    """A stale picture of Slurm, or a journal that cannot be written."""
    kept = Kept(run_s=200.0)
    kept.run.until(lambda: ended(kept.sim, kept.job), 900)
    kept.one_pass()
    kept.one_pass()
    kept.run.world.apply(ch.Barred("journal", kept.sim.now_s, "the disk is full"))
    assert len(kept.one_pass()) == 1
