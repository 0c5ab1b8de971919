"""Plays a scenario on a stage: submits what is due, ends what is to end, waits, and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random

from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.drivers.simulated.events import next_round_s
from backfill.ports.storage import Record
from backfill.sim.scenarios.scenario import JobEntry, JobMoment, Scenario, When
from backfill.sim.scenarios.stage import JobAsk, Stage
from backfill.sim.scenarios.verdicts import Evidence, ScenarioVerdict, judge
from backfill.sim.traces.draws import exponential, lognormal, seeded

# Nothing but the passing of time may be awaited for so long.
_LONGEST_STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a play. `ids`: the Slurm id of each job by its name in the scenario.

    `came_s`: when each was submitted, by its id.
    """

    scenario: Scenario
    verdicts: tuple[ScenarioVerdict, ...]
    ids: Mapping[str, str]
    records: tuple[Record, ...]
    came_s: Mapping[str, float]
    start_s: float
    end_s: float

    @property
    def ok(self) -> bool:
        """Return True if everything is as expected."""
        return all(verdict.ok for verdict in self.verdicts)


def play(
    scenario: Scenario,
    stage: Stage,
    watch: Callable[[Iterable[Record], float], None] = lambda records, now_s: None,
) -> Outcome:
    """Play to the end or to the scenario's limit; `watch` gets what is new in the journal."""
    player = _Player(scenario, stage)
    seen: list[Record] = []
    while not player.turn():
        new = list(stage.records(seen[-1].id if seen else 0))
        seen += new
        watch(new, stage.now())
    new = list(stage.records(seen[-1].id if seen else 0))
    seen += new
    watch(new, stage.now())
    evidence = Evidence(
        jobs={name: stage.jobs()[job_id] for name, job_id in player.ids.items()},
        delays_s=_delays_s(scenario, stage, player.ids),
        complaints=tuple(stage.complaints()),
        left=tuple(stage.left()),
        records=tuple(seen),
        late=player.late,
        payloads=stage.payloads(),
    )
    verdicts = tuple(judge(scenario, evidence))
    return Outcome(scenario, verdicts, player.ids, tuple(seen), player.came_s, player.start_s, stage.now())


def _delays_s(scenario: Scenario, stage: Stage, ids: Mapping[str, str]) -> dict[str, float]:
    """Ask for those of jobs that an expectation names: of many jobs all would take long."""
    asked = {name for one in scenario.expect for name in (one.job, one.than) if name}
    names = {name for kind in asked for name in scenario.entry(kind).all_names}
    found = {name: stage.start_delay_s(ids[name]) for name in sorted(names & ids.keys())}
    return {name: delay_s for name, delay_s in found.items() if delay_s is not None}


@dataclass(slots=True)
class _Step:
    """Something that is done once its moment has come."""

    when: When | None
    delay_s: float
    do: Callable[[], None]
    ended: str = ""  # the job that it ends, which must have begun
    since_s: float | None = None  # since when what it waits for has been so


@dataclass
class _Player:
    scenario: Scenario
    stage: Stage
    ids: dict[str, str] = field(default_factory=dict)
    came_s: dict[str, float] = field(default_factory=dict)
    late: bool = False

    def __post_init__(self) -> None:
        self.start_s = self.stage.now()
        self._steps = []
        arrivals = drawn(self.scenario)
        for name, entry in self.scenario.copies():
            later_s, run_s = arrivals[name]
            submit = partial(self._submit, name, entry, run_s)
            self._steps.append(_Step(entry.when, entry.at_s + later_s, submit))
            if entry.ends is not None:
                finish = partial(self._finish, name)
                self._steps.append(_Step(entry.ends, 0.0, finish, ended=name))
        for fault in self.scenario.faults:
            befall = partial(self.stage.befall, fault)
            self._steps.append(_Step(fault.when, fault.at_s, befall))

    _steps: list[_Step] = field(init=False)
    start_s: float = field(init=False)

    def turn(self) -> bool:
        """Do what is due and let some time pass; true when all is over."""
        jobs = self.stage.jobs()
        now_s = self.stage.now()
        due = [step for step in self._steps if self._due(step, jobs, now_s)]
        self._steps = [step for step in self._steps if step not in due]
        for step in due:
            step.do()
        ended = all(job.state in ENDED for job in jobs.values())
        if not self._steps and not due and ended and not self.stage.left():
            return True
        if now_s > self.start_s + self.scenario.limit_s:
            self._give_up(jobs)
            return True
        if not due:
            self.stage.step(self._next_s(now_s))
        return False

    def _due(self, step: _Step, jobs: Mapping[str, Job], now_s: float) -> bool:
        if step.since_s is None and self._holds(step.when, jobs):
            step.since_s = now_s
        if step.ended and not self._holds_of([step.ended], JobMoment.RUNNING, jobs):
            return False
        return step.since_s is not None and now_s >= self._due_s(step)

    def _due_s(self, step: _Step) -> float:
        if step.when is None:
            return self.start_s + step.delay_s
        assert step.since_s is not None
        return step.since_s + step.when.for_s + step.delay_s

    def _holds(self, when: When | None, jobs: Mapping[str, Job]) -> bool:
        if when is None:
            return True
        return self._holds_of(self.scenario.entry(when.job).all_names, when.state, jobs)

    def _holds_of(self, names: Iterable[str], moment: JobMoment, jobs: Mapping[str, Job]) -> bool:
        return all(name in self.ids and reached(jobs.get(self.ids[name]), moment) for name in names)

    def _next_s(self, now_s: float) -> float:
        """Return when the next step is due, if that is known, or the next look."""
        due = [self._due_s(step) for step in self._steps if step.since_s is not None]
        due = [due_s for due_s in due if due_s > now_s]
        look_s = self.stage.look_s
        next_s = next_round_s(now_s, look_s, self.start_s) if look_s else now_s + _LONGEST_STEP_S
        return min([next_s, *due])

    def _submit(self, name: str, entry: JobEntry, run_s: float) -> None:
        came_s = self.stage.now()
        self.ids[name] = self.stage.submit(
            JobAsk(
                name,
                entry.partition,
                entry.cpus,
                entry.memory_mb,
                entry.nodes,
                run_s,
                entry.count,
                entry.limit_s,
            )
        )
        self.came_s[self.ids[name]] = came_s

    def _finish(self, name: str) -> None:
        self.stage.finish(self.ids[name])

    def _give_up(self, jobs: Mapping[str, Job]) -> None:
        self.late = True
        for job_id, job in jobs.items():
            if job.state not in ENDED:
                self.stage.cancel(job_id)


def drawn(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """By job, how much later than the first copy it comes, and how long it runs. In seconds."""
    rng = seeded(scenario.seed)
    found: dict[str, tuple[float, float]] = {}
    for entry in scenario.jobs:
        for _, names in entry.streams:
            later_s = 0.0
            for name in names:
                if entry.gap_s:
                    later_s += exponential(rng, entry.gap_s)
                found[name] = (later_s, _run_s(rng, entry))
    return found


def _run_s(rng: Random, entry: JobEntry) -> float:
    if entry.spread:
        run_s = lognormal(rng, entry.run_s, entry.spread)
        return min(run_s, entry.limit_s) if entry.limit_s else run_s
    if entry.run_most_s:
        return entry.run_s + (entry.run_most_s - entry.run_s) * rng.random()
    return entry.run_s


def reached(job: Job | None, moment: JobMoment) -> bool:
    """Return True if the job is, or has already been, that far."""
    if job is None:
        return False
    match moment:
        case JobMoment.WAITING:
            return True
        case JobMoment.RUNNING:
            started = job.state is not JobState.PENDING and "CONFIGURING" not in job.flags
            return started or job.restarts > 0
        case JobMoment.ENDED:
            return job.state in ENDED and "COMPLETING" not in job.flags
