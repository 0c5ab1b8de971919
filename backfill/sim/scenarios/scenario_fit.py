"""A scenario under another policy file, and two plays of it side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from backfill.core.policy import PolicySet
from backfill.sim.replay.fitting import MisfitError
from backfill.sim.scenarios.paper import figure_text
from backfill.sim.scenarios.player import Outcome
from backfill.sim.scenarios.reader import contradictions
from backfill.sim.scenarios.scenario import Measure, Scenario


@dataclass(frozen=True, slots=True)
class Play:
    """A scenario that was played, under the policy `name`; without `measures` on a lab."""

    name: str
    outcome: Outcome
    measures: Mapping[Measure, float] = field(default_factory=dict)


def under(scenario: Scenario, policies: PolicySet, name: str) -> Scenario:
    """The scenario with these rules on its own hosts. MisfitError where they do not fit it."""
    own = scenario.policies
    if not policies.priorities.high:
        policies = replace(policies, priorities=replace(policies.priorities, high=own.priorities.high))
    found = replace(scenario, policies=replace(policies, cluster=own.cluster, hosts=own.hosts))
    for path, what, remedy in contradictions(found):
        raise MisfitError(f"{name} does not fit the scenario: its {path} {what}; {remedy}")
    return found


def beside_one_another(plays: Sequence[Play]) -> list[tuple[str, ...]]:
    """Rows of a table: a measure, and its figure in each play."""
    return [
        ("", *(play.name for play in plays)),
        *((m, *(figure_text(m, play.measures[m]) for play in plays)) for m in Measure),
    ]
