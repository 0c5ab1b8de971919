"""Any number of random simulated days, side by side: `make days DAYS=10000 SEED=7`.

Each day is drawn from the seed and its number alone, so that one that broke a promise can be lived
again: `make days SEED=7 DAY=123`. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.plan import Plan
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.liveness import Liveness
from backfill.core.policies.own_machines import Hopeless, OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policies.workloads import AtEnd, WarnBy, Workload, Workloads
from backfill.core.policy import PolicySet, Proof
from backfill.core.reconcile.planner import enact, plan
from backfill.core.world import World
from backfill.engine import cycle
from tests.property.days import ACCIDENTS, HOSTILE, SECOND, Accident, Day, policies
from tests.property.run_identity import Lived, live

LADDERS = (
    (RungRule(Rung.PAUSE, 1.0, 60.0), RungRule(Rung.SUSPEND, 60.0, 120.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.PAUSE, 1.0), RungRule(Rung.REQUEUE)),
    (RungRule(Rung.PAUSE, 1.0, 20.0), RungRule(Rung.SUSPEND, 60.0, 14400.0)),
    (
        RungRule(Rung.PAUSE, 1.0, 5.0),
        RungRule(Rung.MIGRATE, 30.0),
        RungRule(Rung.SUSPEND, 60.0, 600.0),
        RungRule(Rung.REQUEUE),
    ),
    (RungRule(Rung.MIGRATE, 5.0), RungRule(Rung.PAUSE, 1.0, 1000.0)),
    (RungRule(Rung.SUSPEND, 60.0, 300.0), RungRule(Rung.REQUEUE)),
    (
        RungRule(Rung.THROTTLE, 1.0, 15.0),
        RungRule(Rung.PAUSE, 1.0, 30.0),
        RungRule(Rung.SUSPEND, 60.0, 600.0),
    ),
    (RungRule(Rung.REQUEUE),),
)
# Everything has to be over so long after the last accident; a day of trouble takes longer than one
# without, because who has failed is tried again ever more seldom.
LIMIT_S = 6_000.0
# Cycles of `run_identity` that are lived in one go.
_PART = 800


@dataclass(frozen=True, slots=True)
class Low:
    """A job of low priority. `limit_s`: what its owner adds to its run time as a limit; 0: none."""

    run_s: float
    at_s: float
    requeue: bool = True
    nodes: int = 1
    cpus: int = 1  # on each node
    memory_mb: int = 0
    limit_s: float = 0.0
    het: bool = False
    name: str = ""
    heeds_s: float | None = None
    comment: str = ""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A whole day before it is lived. `high_limit`: times their run time, high jobs ask for; 0: no limit."""

    rules: PolicySet
    shared: bool
    low: tuple[Low, ...]
    high: tuple[tuple[float, float], ...]
    wrong: tuple[Accident, ...]
    high_limit: float = 0.0


def draw(seed: int, number: int, *, weeks: int = 2) -> Drawn:
    """The `number`-th day of this seed, always the same; `weeks`: 1 for what the first one knew alone."""
    day = _impatient(random.Random(f"{seed}/{number}/patience"), _drawn(seed, number))
    if weeks < 2:
        return day
    day = _owning(random.Random(f"{seed}/{number}/machines"), day)
    day = _sized(random.Random(f"{seed}/{number}/sizes"), day)
    return _worse(random.Random(f"{seed}/{number}/second"), day)


def _worse(rng: random.Random, day: Drawn) -> Drawn:
    """Every second day more goes wrong than in a hostile week."""
    if rng.random() < 0.5:
        return day
    last_s = max([60.0, *(at_s for _, at_s in day.high)])
    more = [
        Accident(rng.choice(SECOND), round(rng.uniform(1.0, last_s), 2), rng.randint(0, 5))
        for _ in range(rng.randint(1, 5))
    ]
    return replace(day, wrong=tuple(sorted((*day.wrong, *more), key=lambda a: a.at_s)))


def _sized(rng: random.Random, day: Drawn) -> Drawn:
    """Every fourth day instances have two CPUs, of which its jobs want one or both, and memory or none."""
    if rng.random() > 0.25 or not day.rules.ladder.ends:
        return day
    flavour = replace(day.rules.instances.flavour, cpus=2, memory_mb=512)
    low = tuple(
        # As below: one that may not start over beside a stale copy waits for a person.
        replace(job, cpus=rng.choice((1, 1, 2)), memory_mb=rng.choice((0, 0, 100, 300)), requeue=True)
        for job in day.low
    )
    return replace(
        day, rules=replace(day.rules, instances=replace(day.rules.instances, flavour=flavour)), low=low
    )


def _owning(rng: random.Random, day: Drawn) -> Drawn:
    """Every fourth day some of its jobs ask for machines of their own, a few for what cannot be."""
    if rng.random() > 0.25:
        return day
    own = OwnMachines(
        enabled=True,
        most=rng.choice((2, 12)),
        respawns=rng.choice((0, 2, 20)),
        passed_over_s=rng.choice((30.0, 600.0)),
        hopeless=Hopeless.CANCEL,
    )
    words = ("backfill-vm", "backfill-vm:cpus=2,mem=512", "backfill-vm:cpus=2", "backfill-vm:cpus=9")
    low = tuple(
        replace(job, comment=rng.choice(words), nodes=rng.choice((1, 1, 2))) if rng.random() < 0.7 else job
        for job in day.low
    )
    return replace(day, rules=replace(day.rules, own_machines=own), low=low)


def _impatient(rng: random.Random, day: Drawn) -> Drawn:
    """Every third day some of its jobs, or all, cannot stand still for ever."""
    if rng.random() > 0.35:
        return day
    patience_s = rng.choice((15.0, 40.0, 120.0))
    if day.rules.budgets.windows:
        # A budget that pushes jobs aside each minute for longer than they can wait lets none of them end.
        patience_s = max(40.0, patience_s)
    pause = RungRule(Rung.PAUSE, 1.0, patience_s - 2.0)
    some = [RungRule(Rung.THROTTLE, 1.0), pause, RungRule(Rung.MIGRATE, 30.0), RungRule(Rung.REQUEUE)]
    first = 1 if rng.random() < 0.5 or day.rules.proof is Proof.MEMORY else 0
    ladder = tuple(some[first:2] + (some[2:3] if rng.random() < 0.5 else []) + some[3:])
    pilots = Workload(
        "pilots",
        job_name="pilot*" if rng.random() < 0.7 else "",
        stand_still_s=patience_s,
        warn=rng.choice((WarnBy.NOTHING, WarnBy.SIGNAL, WarnBy.FEATURES, WarnBy.COMMAND)),
        command=("drain-me",),
        drain_s=rng.choice((0.0, 3.0, 10.0)),
        at_end=rng.choice((AtEnd.REQUEUE, AtEnd.REQUEUE, AtEnd.CANCEL)),
        ladder=ladder,
    )
    low = tuple(
        replace(job, name=f"pilot {i}", heeds_s=rng.choice((None, 2.0))) if rng.random() < 0.6 else job
        for i, job in enumerate(day.low)
    )
    rules = replace(day.rules, workloads=Workloads((pilots,)))
    if rng.random() < 0.3 and rules.ladder.ends:  # two jobs in one instance, with the same patience or not
        shape = replace(rules.instances, flavour=replace(rules.instances.flavour, cpus=2))
        rules = replace(rules, instances=shape)
        # One that is not to start over beside a stale copy, or may not, waits for a person.
        low = tuple(replace(job, requeue=True) for job in low)
    return replace(day, rules=rules, low=low, high_limit=rng.choice((0.0, 1.5, 4.0)))


def _drawn(seed: int, number: int) -> Drawn:
    rng = random.Random(f"{seed}/{number}")
    ladder = rng.choice(LADDERS)
    warm = rng.choice((0, 0, 2))
    shared = rng.random() < 0.25
    budget = shared and rng.random() < 0.4
    windows = (Budget("2", schedule="* * * * *", duration_s=30.0),) if budget else ()
    rules = policies(
        ladder,
        scale=Scale(idle_s=20, boot_within_s=30, retry_after_s=5, give_up_after=20, warm=warm),
        comeback=Comeback(settle_s=rng.choice((0.0, 0.0, 5.0))),
        proof=Proof.MEMORY if ladder[0].rung is Rung.SUSPEND else Proof.CPU,
        liveness=Liveness(down_after_s=rng.choice((0.0, 300.0))),
        victims=Victims(extent=Extent.NEEDED if shared else Extent.HOST),
        budgets=Budgets(windows),
        answer_within_s=8.0,
    )
    last_s = rng.choice((90.0, 400.0))
    low = tuple(_low(rng, last_s, warm) for _ in range(rng.randint(1, 6)))
    high = tuple(
        (float(rng.choice((rng.randint(2, 30), rng.randint(60, 300)))), rng.uniform(5.0, last_s))
        for _ in range(rng.randint(1, 5))
    )
    wrong = tuple(
        Accident(rng.choice(ACCIDENTS + HOSTILE), round(rng.uniform(1.0, last_s), 2), rng.randint(0, 5))
        for _ in range(rng.randint(0, 6))
    )
    return Drawn(rules, shared, low, high, tuple(sorted(wrong, key=lambda a: a.at_s)))


def _low(rng: random.Random, last_s: float, warm: int) -> Low:
    return Low(
        float(rng.choice((rng.randint(5, 60), rng.randint(60, 600)))),
        round(rng.uniform(0.0, last_s / 2), 2),
        requeue=rng.random() < 0.6,
        nodes=2 if warm and rng.random() < 0.3 else 1,
        limit_s=rng.choice((0.0, 0.0, 400.0)),
        het=rng.random() < 0.1,
    )


def lived(drawn: Drawn) -> tuple[list[tuple[str, str]], Day]:
    """What was wrong at the end of the day, by kind, and the day itself."""
    day = Day(drawn.rules, shared=drawn.shared)
    throttles = drawn.rules.ladder.rungs[0].rung is Rung.THROTTLE
    for job in drawn.low:
        limit_s = None if throttles or not job.limit_s else job.run_s + job.limit_s
        day.submit_one(
            "htc",
            job.run_s,
            job.at_s,
            cpus=job.nodes * job.cpus,
            memory_mb=job.memory_mb,
            num_nodes=job.nodes,
            requeue=job.requeue,
            time_limit_s=limit_s,
            het=job.het,
            name=job.name,
            heeds_s=job.heeds_s,
            comment=job.comment,
        )
    if drawn.high_limit:
        for run_s, at_s in drawn.high:
            day.submit_one("batch", run_s, at_s, time_limit_s=run_s * drawn.high_limit + 60.0)
    day.fill([], [] if drawn.high_limit else list(drawn.high), drawn.wrong)
    try:
        wrong = list(_ended(day))
    except Exception as error:  # noqa: BLE001 - whatever ends a day is a finding, not our end
        wrong = [("defect", f"{type(error).__name__}: {error}")]
    return wrong + [(v.kind, str(v)) for v in day.unexcused()] + day.errors(), day


def _ended(day: Day) -> Iterator[tuple[str, str]]:
    """Everything has to come to its end by itself, and nothing may be left over."""
    for what, done in (("jobs", day.over), ("nodes", day.quiet)):
        if what == "nodes":
            day.keep_no_spares()
        try:
            _until(day, done)
        except TimeoutError as error:
            states = {j: day.sim.job(j).state.value for j in day.jobs}
            refusals = [str(r) for r in day.run.cycle.last.refusals]
            yield "stuck", f"{what}: {error}; jobs: {states}; left: {day.left()}; refused: {refusals}"
            return


def _until(day: Day, done: Callable[[], bool]) -> None:
    """Wait for it; a person looks once whether anything waits for their word."""
    try:
        day.run.until(done, LIMIT_S)
    except TimeoutError:
        if not day.does_as_told():
            raise
        day.run.until(done, LIMIT_S)


# --- the command ---------------------------------------------------------------------------------


@dataclass(slots=True)
class Sum:
    """What came of all days so far."""

    days: int = 0
    cpu_s: float = 0.0
    violations: Counter[str] = field(default_factory=Counter)
    broken: list[int] = field(default_factory=list)
    cycles: int = 0
    reports: int = 0


def _live(task: tuple[int, int, int]) -> tuple[int, float, list[tuple[str, str]]]:
    began_s = time.process_time()
    seed, number, weeks = task
    wrong, _ = lived(draw(seed, number, weeks=weeks))
    return number, time.process_time() - began_s, wrong


def _both(world: World, policies: PolicySet, *, spare: bool) -> Plan:
    """Each plan also from scratch: what earlier findings left out must make no difference."""
    anew = plan(world, policies, from_scratch=True, spare=spare)
    found = enact(world, policies, spare=spare)
    more = set(map(str, found.refusals)) ^ set(map(str, anew.refusals))
    if more or replace(found, refusals=()) != replace(anew, refusals=()):
        raise AssertionError(f"the plan that goes on is not the one from scratch: {found} / {anew}")
    return found


def _live_cycles(cycles: int) -> tuple[Lived, float]:
    began_s = time.process_time()
    return live(cycles), time.process_time() - began_s


def live_cycles(cycles: int, processes: int) -> Sum:
    """Live so many cycles of run, push aside and start over, while former runs report late."""
    total = Sum()
    parts = [_PART] * (cycles // _PART) + ([cycles % _PART] if cycles % _PART else [])
    with multiprocessing.Pool(processes, _quiet, (False,)) as pool:
        for lived_, cpu_s in pool.imap_unordered(_live_cycles, parts):
            total.cycles += lived_.cycles
            total.reports += lived_.reports
            total.cpu_s += cpu_s
            total.violations["identity"] += len(lived_.wrong)
            for text in lived_.wrong[:3]:
                print(f"identity: {text}", file=sys.stderr, flush=True)
            print(f"{total.cycles} of {cycles} cycles", file=sys.stderr, flush=True)
    return total


def _quiet(twice: bool) -> None:
    logging.disable(logging.WARNING)
    logging.getLogger("backfill").propagate = False
    if twice:
        setattr(cycle, "enact", _both)  # noqa: B010 - a module's name that it does not export


def _tell(total: Sum, of: int, began_s: float) -> None:
    left_s = (time.monotonic() - began_s) / total.days * (of - total.days)
    print(
        f"{total.days} of {of} days, {len(total.broken)} of them broken "
        f"{dict(total.violations)}, {left_s:.0f} s left",
        file=sys.stderr,
        flush=True,
    )


def live_many(seed: int, numbers: range, processes: int, twice: bool, weeks: int = 2) -> Sum:
    """Live these days, in so many processes; findings and progress go to standard error."""
    total, began_s, told_s = Sum(), time.monotonic(), time.monotonic()
    tasks = ((seed, number, weeks) for number in numbers)
    with multiprocessing.Pool(processes, _quiet, (twice,)) as pool:
        for number, cpu_s, wrong in pool.imap_unordered(_live, tasks, chunksize=4):
            total.days += 1
            total.cpu_s += cpu_s
            total.violations.update(kind for kind, _ in wrong)
            if wrong:
                total.broken.append(number)
                kind, text = wrong[0]
                print(f"day {number}: {kind}: {text[:600]}", file=sys.stderr)
                print(f"  again: make days SEED={seed} DAY={number}", file=sys.stderr, flush=True)
            if time.monotonic() - told_s > 10.0:
                told_s = time.monotonic()
                _tell(total, len(numbers), began_s)
    return total


def _tell_one(seed: int, number: int, weeks: int) -> int:
    """Live one day and tell its story."""
    drawn = draw(seed, number, weeks=weeks)
    wrong, day = lived(drawn)
    for record in day.run.journal.read():
        if record.kind != "change":
            print(f"{record.at_s:.3f} {record.kind} {record.subject} {record.body}"[:500])
    print(drawn.rules.ladder, drawn.rules.scale, f"shared: {drawn.shared}")
    for line in (*drawn.low, *drawn.high, *drawn.wrong):
        print(line)
    for name in day.jobs:
        print(day.sim.job(name))
    phases = {m.name: m.phase.value for m in day.run.world.managed.values()}
    print({name: phase for name, phase in phases.items() if phase != Phase.FAILED.value})
    for kind, text in wrong:
        print(f"{kind}: {text}")
    print(json.dumps({"seed": seed, "day": number, "violations": dict(Counter(k for k, _ in wrong))}))
    return 1 if wrong else 0


def main() -> int:
    """Live the days that the command line asks for; 1 when a promise was broken."""
    parser = argparse.ArgumentParser(prog="make days", description=__doc__)
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=None, help="random if not given")
    parser.add_argument("--day", type=int, default=None, help="only this one, with its story")
    parser.add_argument("--cycles", type=int, default=0, help="and so many of run_identity")
    parser.add_argument("--first", type=int, default=0, help="begin with this one")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--weeks", type=int, choices=(1, 2), default=2, help="1: fewer kinds of accidents")
    parser.add_argument("--twice", action="store_true", help="make each plan from scratch as well")
    asked = parser.parse_args()
    seed = int.from_bytes(os.urandom(4)) if asked.seed is None else asked.seed
    print(f"SEED={seed}", file=sys.stderr, flush=True)
    if asked.day is not None:
        _quiet(asked.twice)
        return _tell_one(seed, asked.day, asked.weeks)
    numbers = range(asked.first, asked.first + asked.days)
    total = live_many(seed, numbers, asked.processes, asked.twice, asked.weeks)
    runs = live_cycles(asked.cycles, asked.processes)
    wrong = +(total.violations + runs.violations)
    print(
        json.dumps(
            {
                "seed": seed,
                "days": total.days,
                "violations": dict(sorted(wrong.items())),
                "broken_days": sorted(total.broken),
                "cpu_s": round(total.cpu_s, 1),
                "days_per_cpu_minute": round(total.days / max(total.cpu_s, 0.001) * 60.0, 1),
                "cycles": runs.cycles,
                "late_reports": runs.reports,
                "cycles_cpu_s": round(runs.cpu_s, 1),
            }
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
