"""The ladder of a ready-made workload fits what a host gives back: its CPUs, or its memory too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.workloads import READY_MADE, ReadyMade, Workload, Workloads
from backfill.core.policy import Proof
from tests.unit.policy_files import sentences, text
from tests.unit.test_stops import POLICIES

KEPT = {Rung.THROTTLE, Rung.PAUSE}
FINITE = [kind for kind in ReadyMade if READY_MADE[kind].stand_still_s is not None]


@pytest.mark.parametrize("like", FINITE)
def test_where_memory_is_wanted_nothing_of_it_is_kept(like: ReadyMade) -> None:
    """It goes to disk or to another host, within the patience; a ladder of one's own stays as it is."""
    rules = replace(POLICIES, workloads=Workloads((Workload("w", like=like),)))
    assert {rule.rung for rule in rules.ladder_of("w").rungs} & KEPT
    ladder = replace(rules, proof=Proof.MEMORY).ladder_of("w")
    assert [rule.rung for rule in ladder.rungs] == [Rung.SUSPEND, Rung.MIGRATE, Rung.REQUEUE]
    planned_s, patience_s = ladder.planned_stop_s, READY_MADE[like].stand_still_s
    assert planned_s is not None
    assert patience_s is not None
    assert planned_s == rules.ladder_of("w").planned_stop_s
    assert planned_s < patience_s
    own = (RungRule(Rung.REQUEUE),)
    its = replace(rules, workloads=Workloads((Workload("w", like=like, ladder=own),)), proof=Proof.MEMORY)
    assert its.ladder_of("w") == Ladder(own)


def test_jobs_without_a_workload_have_the_ladder_of_all() -> None:
    """As those of one that names none."""
    rules = replace(POLICIES, workloads=Workloads((Workload("w"),)), proof=Proof.MEMORY)
    assert rules.ladder_of("") == rules.ladder_of("w") == rules.ladder


def test_a_ladder_that_keeps_for_good_what_must_be_proven_free_is_refused(tmp_path: Path) -> None:
    """In its line, as that of all jobs is."""
    own = "{name: w, like: condor, ladder: [{rung: throttle}, {rung: requeue}]}"
    (said,) = sentences(tmp_path, text(f"proof: memory\nworkloads: [{own}]"))
    assert "workloads[0].ladder[0].for_s is not set, so a throttled instance would keep the memory" in said
