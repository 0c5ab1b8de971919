"""Plays a run of a scenario again in simulation, with what its own journal teaches."""

from __future__ import annotations

from dataclasses import replace

from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.fidelity import events
from backfill.sim.learning import learned
from backfill.sim.rhythm import Rhythm, heard
from backfill.sim.scenario_player import Outcome, play
from backfill.sim.stage import SimulatedStage


def predicted(real: Outcome, known: Rhythm) -> Outcome:
    """The same story in simulation; `known`: what is known of the clocks without the journal.

    Learned are medians of what steps took, and the phases of what comes round. When anything
    happened is not taken over: that follows from the scenario and the daemon's own decisions.
    """
    scenario = replace(real.scenario, costs=StepCosts(**learned(real.records)))
    asked = {name: entry.count for name, entry in real.scenario.copies() if entry.count}
    counts = {real.ids[name]: count for name, count in asked.items() if name in real.ids}
    rhythm = heard(real.records, known, real.start_s, counts)
    return play(scenario, SimulatedStage(scenario, rhythm=rhythm))


def told(outcome: Outcome) -> dict[str, float]:
    """The events of a run: what happened, and how many seconds after its beginning."""
    names = {job_id: name for name, job_id in outcome.ids.items()}
    return events(outcome.records, names, outcome.came_s, outcome.start_s)
