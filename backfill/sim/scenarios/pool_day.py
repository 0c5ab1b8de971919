"""A day of pilots beside its rivals: killing, pausing without patience, and never evicting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, OUR_REASON, Job
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.workloads import Workloads
from backfill.ports.storage import Record
from backfill.sim.scenarios.payloads import span_s
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.scenario import FaultEntry, Scenario
from backfill.sim.scenarios.stage import SimulatedCluster, SimulatedStage

KILLING, PAUSING, NEVER = "killing", "pausing blindly", "never evicting"
# Somebody sends pilots by hand, and looks so often whether one more is wanted.
_LOOK_S = 1.0
_LONGEST_S = 1e6
_PUSHED = frozenset({Phase.EVICTING, Phase.THROTTLED})


@dataclass(frozen=True, slots=True)
class PoolDay:
    """What came of one way to deal with pilots. Shares are of the hosts' CPU time while hosts were wanted.

    `lost`: the share of what payloads computed that was in vain; `runs_lost`: in so many runs.
    `twice`: payloads at work, or booked, twice. Waits: of high-priority jobs from their submission
    to their first command, s.
    """

    name: str
    goodput: float
    badput: float
    idle: float
    lost: float
    done: int
    runs_lost: int
    twice: int
    evictions: int
    wait_mean_s: float
    wait_p95_s: float


def rivals(scenario: Scenario) -> Iterator[PoolDay]:
    """Play the same story, drawn from the same seed, in each of the other ways."""
    plain = replace(scenario, expect=())
    for name, rule in ((KILLING, RungRule(Rung.REQUEUE)), (PAUSING, RungRule(Rung.PAUSE, for_s=_LONGEST_S))):
        policies = replace(plain.policies, ladder=Ladder((rule,)), workloads=Workloads())
        one = replace(plain, policies=policies)
        stage = SimulatedStage(one)
        yield day_of(name, stage, play(one, stage))
    bare = BareStage(plain)
    yield day_of(NEVER, bare, play(plain, bare))


def day_of(name: str, stage: SimulatedCluster, outcome: Outcome) -> PoolDay:
    """Take stock of a play with payloads that is over."""
    scenario, found = outcome.scenario, stage.payloads()
    assert found is not None, "a scenario without payloads"
    start_s, until_s = outcome.start_s, max(outcome.came_s.values())
    capacity_s = (until_s - start_s) * sum(group.cpus * len(group.names) for group in scenario.hosts)
    begins_s, ends_s, jobs = stage.begins_s(), stage.ends_s(), stage.jobs()
    high = [(begins_s[i], ends_s[i], jobs[i].cpus) for i in outcome.came_s if i in begins_s]
    high_s = sum(cpus * span_s([(began_s, ended_s)], until_s) for began_s, ended_s, cpus in high)
    waits = sorted(begins_s[i] - came_s for i, came_s in outcome.came_s.items() if i in begins_s)
    cpus = scenario.policies.instances.flavour.cpus
    good_s, vain_s = (cpus * span_s(spans, until_s) for spans in (found.good, found.vain))
    return PoolDay(
        name,
        good_s / capacity_s,
        vain_s / capacity_s,
        1.0 - (good_s + vain_s + high_s) / capacity_s,
        found.lost,
        len(found.kept.done),
        found.runs_lost,
        len(found.kept.twice),
        evictions(outcome.records),
        sum(waits) / len(waits),
        waits[int(0.95 * len(waits))],
    )


def evictions(records: Iterable[Record]) -> int:
    """How often an instance with a job was pushed aside, by any rung."""
    phases: dict[str, Phase] = {}
    jobs: dict[str, Job] = {}
    count = 0
    for record in records:
        if record.kind != "change" or record.body.get("t") not in ("NodeManaged", "JobSeen"):
            continue
        match decode(record.body):
            case ch.JobSeen(job=job):
                jobs[job.id] = job
                if job.state in ENDED:
                    del jobs[job.id]
            case ch.NodeManaged(node=node):
                before, phases[node.name] = phases.get(node.name), node.phase
                aside = node.phase in _PUSHED and before not in (*_PUSHED, Phase.PARKED)
                count += aside and any(node.name in job.nodes and job.active for job in jobs.values())
            case _:
                pass
    return count


class BareStage(SimulatedCluster):
    """Pilots run on the hosts themselves, and whoever wants a host waits for the end of a payload."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._scenario = scenario
        self._pilots: set[str] = set()
        self._send()

    def _send(self) -> None:
        """Keep one pilot waiting for each host that has none, while payloads wait."""
        self._pilots = {i for i in self._pilots if self._sim.job(i).state not in ENDED}
        idle = self._sim.pool.observe().idle
        for _ in range(min(idle, len(self._scenario.host_names) - len(self._pilots))):
            low, cpus = (
                self._scenario.policies.priorities.low[0],
                self._scenario.policies.instances.flavour.cpus,
            )
            self._pilots.add(self._sim.submit(low, 0.0, cpus=cpus, comment=f"{OUR_REASON} by hand"))
        self._sim.at(self._sim.now_s + _LOOK_S, self._send)

    def befall(self, fault: FaultEntry) -> None:
        """Do nothing: nobody is there whom it could befall."""

    def records(self, after_id: int = 0) -> Iterable[Record]:
        """Return nothing: no daemon, no journal."""
        return ()

    def left(self) -> list[str]:
        """Return the pilots that have not ended."""
        return sorted(i for i in self._pilots if self._sim.job(i).state not in ENDED)
