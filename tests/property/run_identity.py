"""Jobs that are pushed aside and start over, again and again, while their former runs report late.

`make days CYCLES=10000` lives so many cycles beside its days.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Flavour, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Victims
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.storage import Record
from backfill.sim.scenarios.rehearsal import Rehearsal

EACH = 8  # instances on one host
_RUN_S = 1e7  # longer than any test
# What a former run may still say: outcomes of calls, readings, hooks.
_REPORTS = (
    ch.OperationDone,
    ch.JobSeen,
    ch.InstanceSeen,
    ch.InstanceStopped,
    ch.InstanceGone,
    ch.NodeSeen,
    ch.Claimed,
    ch.ClaimAnswered,
    ch.Kicked,
)


class _Forgetful(MemoryJournal):
    """Nobody restarts the daemon here: what it writes is not kept."""

    def append(self, records: Iterable[Record]) -> None:
        """Take them, and forget them."""


@dataclass(frozen=True, slots=True)
class Lived:
    """What came of it. `wrong`: every report of a former run that was taken for the present one."""

    cycles: int
    reports: int
    wrong: list[str]


class Cycles:
    """Low jobs on all CPUs, requeued in waves by jobs that take every host for a moment."""

    def __init__(self, number: int) -> None:
        names = number * EACH
        hosts = tuple(f"bm{i}" for i in range(1, number + 1))
        rules = PolicySet(
            cluster="sim",
            priorities=Priorities(low=("htc",), high=("batch",)),
            instances=Template(
                tuple(f"vn{i}" for i in range(1, names + 1)),
                tuple(f"10.77.1.{i}/16" for i in range(1, names + 1)),
                Flavour(cpus=1, memory_mb=256),
            ),
            hosts=hosts,
            ladder=Ladder((RungRule(Rung.REQUEUE),)),
            scale=Scale(idle_s=600),
            limits=Limits(
                max_instances=names,
                boots_at_once=names,
                removals_at_once=names,
                creates_per_hour=1_000_000,
                destroys_per_min=1_000_000,
                destroys_per_hour=1_000_000,
            ),
            victims=Victims(protect_after=0),
        )
        self.sim = SimulatedWorld()
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.add_partition("batch", tier=10, feature="metal")
        for host in hosts:
            self.sim.add_host(host, cpus=EACH, features=("metal",))
        self.run = Rehearsal(self.sim, rules, _Forgetful())
        self.hosts = hosts
        self.lows = [self.sim.submit("htc", _RUN_S) for _ in range(names)]
        self.wrong: list[str] = []
        self.cycles = self.reports = 0
        self._heard: list[ch.Change] = []
        self._ends: list[tuple[Job, tuple[str, ...]]] = []
        self._listen()
        self.run.until(self._all_run, 300)

    def _listen(self) -> None:
        """Note what is reported, as it comes to the daemon."""
        cycle, take = self.run.cycle, self.run.cycle.take

        def noting(changes: Iterable[ch.Change]) -> None:
            told = list(changes)
            self._heard += [c for c in told if isinstance(c, _REPORTS)]
            take(told)

        cycle.take = noting  # type: ignore[method-assign]
        self._take = take

    def _all_run(self) -> bool:
        seen = (self.sim.job(low) for low in self.lows)
        return all(j.state is JobState.RUNNING and "CONFIGURING" not in j.flags for j in seen)

    def wave(self) -> None:
        """Every low job is requeued and starts over; then what was said before is said again."""
        before = {low: self.sim.job(low) for low in self.lows}
        late, self._heard = self._heard, []
        highs = [self.sim.submit("batch", 3.0, cpus=EACH, required_nodes=(host,)) for host in self.hosts]
        anew = {low: job.restarts + 1 for low, job in before.items()}
        self.run.until(lambda: all(self.sim.job(j).restarts == n for j, n in anew.items()), 120)
        # Some of it while the jobs wait, the rest once they run again.
        said = self._heard
        self._say(late[: len(late) // 2], anew)
        self.run.until(lambda: all(self.sim.job(h).state is JobState.COMPLETED for h in highs), 120)
        self.run.until(self._all_run, 300)
        self._say([*late, *said], anew)
        for job in before.values():
            self.sim.end_hook_again(replace(job, state=JobState.PREEMPTED), job.nodes)
        self.run.run(2.5)  # a reading and what is decided after it
        self._compare(anew, "after it")
        self.cycles += len(self.lows)

    def _say(self, late: list[ch.Change], anew: dict[str, int]) -> None:
        # What is gone now and was there is a reading of its own, which has a time of its own.
        self.reports += len(late)
        for change in late:
            self._take([change])
            known = getattr(change, "job", None)
            if isinstance(known, Job) and known.id in anew:
                self._compare({known.id: anew[known.id]}, f"by {type(change).__name__}")
        self.run.cycle.decide()

    def _compare(self, anew: dict[str, int], when: str) -> None:
        """Slurm has the second run, and so has the daemon."""
        for low, restarts in anew.items():
            real, known = self.sim.job(low), self.run.world.jobs.get(low)
            if real.restarts != restarts:
                self.wrong.append(f"job {low} has restart {real.restarts}, not {restarts}, {when}")
            if known is not None and known.restarts < restarts and known.active:
                self.wrong.append(f"job {low}: restart {known.restarts} is believed to run, {when}")


def live(cycles: int, hosts: int = 10) -> Lived:
    """Live at least so many cycles, on so many hosts."""
    world = Cycles(hosts)
    while world.cycles < cycles:
        world.wave()
    promises = [str(v) for v in world.sim.audit()]
    return Lived(world.cycles, world.reports, [*world.wrong, *promises])
