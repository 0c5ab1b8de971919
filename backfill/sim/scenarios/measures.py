"""Measures a scenario that was played: what can be set beside the figures of a paper."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.scenario import Measure, Scenario
from backfill.sim.scenarios.stage import SimulatedStage


def measures(scenario: Scenario, variant: str) -> dict[Measure, float]:
    """Play one variant in simulated time and measure it."""
    changed = replace(scenario, costs=scenario.variants[variant], expect=())
    stage = SimulatedStage(changed)
    return measured(changed, play(changed, stage), stage.jobs(), stage.ends_s())


def measured(
    scenario: Scenario, outcome: Outcome, jobs: Mapping[str, Job], ends_s: Mapping[str, float]
) -> dict[Measure, float]:
    """Return the measures of one play; `ends_s` by job id, epoch seconds."""
    low = [job for job in jobs.values() if job.partition in scenario.policies.priorities.low]
    done = [job for job in jobs.values() if job.state is JobState.COMPLETED]
    first_s = min(job.submit_s for job in jobs.values())
    # One that was told to finish at once has never computed.
    end_s = {job.id: ends_s.get(job.id, job.start_s) for job in done}
    makespan_s = max(end_s.values(), default=first_s) - first_s
    capacity = sum(group.cpus * len(group.names) for group in scenario.hosts)
    work = sum((end_s[job.id] - job.start_s) * job.cpus for job in done)
    began = [job for job in low if job.start_s > 0]
    provisions = list(_provisions(outcome))
    return {
        Measure.PROVISION: fmean(provisions) if provisions else 0.0,
        Measure.LAUNCH: max((job.start_s for job in began), default=first_s) - first_s,
        Measure.WAIT: fmean([job.start_s - job.submit_s for job in began]) if began else 0.0,
        Measure.MAKESPAN: makespan_s,
        Measure.THROUGHPUT: len(done) / makespan_s * 3600.0 if makespan_s else 0.0,
        Measure.UTILISATION: work / (capacity * makespan_s) if makespan_s else 0.0,
    }


def _provisions(outcome: Outcome) -> Iterator[float]:
    """Yield how long each instance took from the decision to its first READY."""
    known: set[tuple[str, int]] = set()
    for record in outcome.records:
        if record.kind != "change" or record.body.get("t") != "NodeManaged":
            continue
        change = decode(record.body)
        assert isinstance(change, ch.NodeManaged)
        node = change.node
        first = node.phase is Phase.READY and (node.name, node.generation) not in known
        if first and node.proof.proven_s == node.since_s:
            known.add((node.name, node.generation))
            yield node.since_s - node.created_s
