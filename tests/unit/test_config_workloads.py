"""Workloads in the policy file: what contradicts itself is refused, in its line and with a remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.config.load import load
from backfill.core.policies.workloads import READY_MADE, AtEnd, ReadyMade, WarnBy
from tests.unit.policy_files import sentences, text

LONG = "the ladder of all jobs lets one stand still for up to 14460"
NO_END = "and the patience of these jobs has no end; set stand_still_s"
BAD = [
    ("{name: p, stand_still_s: 60}", f"is 60 s, and {LONG}"),
    (
        "{name: p, stand_still_s: 60, ladder: [{rung: pause, for_s: 90}, {rung: requeue}]}",
        "ladder lets a job stand still for up to 90 s, more than workloads[0].stand_still_s = 60 s; shorten",
    ),
    (
        "{name: p, stand_still_s: 60, ladder: [{rung: pause}]}",
        "lets a job stand still without limit, more than workloads[0].stand_still_s = 60 s",
    ),
    ("{name: p, like: condor, stand_still_s: 30}", "is 30 s, and the ladder of workloads[0].like lets a job"),
    ("{name: p, like: condor, signal: TREM}", "USR1 or USR2 (did you mean TERM?)"),
    ("{name: p, like: condor, signal: term}", "USR1 or USR2 (did you mean TERM?)"),
    ("{name: p, like: condr}", "did you mean condor?"),
    ("{name: p, like: condor, warn: command}", "command is not set, and warn is command; name the program"),
    ("{name: p, like: condor, command: [/x]}", "command is set, and warn is signal; write warn: command"),
    ("{name: p, at_end: cancel}", f"at_end is set, {NO_END}"),
    ("{name: p, drain_s: 5}", "drain_s is set, and the patience of these jobs has no end"),
    ("{name: p, ladder: [{rung: requeue}, {rung: pause}]}", "workloads[0].ladder[1] would never be reached"),
    ("{name: p, min_nodes: 0}", "min_nodes is 0; it must be more than 0"),
    ("{like: condor}", "workloads[0].name is missing"),
]


@pytest.mark.parametrize(("inner", "words"), BAD)
def test_what_contradicts_itself_is_refused(tmp_path: Path, inner: str, words: str) -> None:
    """One sentence, with the place and what to do."""
    found = sentences(tmp_path, text(f"workloads: [{inner}]"))
    assert len(found) == 1, found
    assert words in found[0]
    assert found[0].startswith("policy.yaml:")


def test_an_entry_that_has_no_jobs_left_is_refused(tmp_path: Path) -> None:
    """The first entry that has a job counts."""
    inner = (
        "{name: a, like: condor, users: [x, y]}, {name: b, like: ospool, users: [y]}, {name: a, users: [z]}"
    )
    found = sentences(tmp_path, text(f"workloads: [{inner}]"))
    assert "workloads[1] has no jobs, because an entry before it has all of them" in found[0]
    assert "workloads[2].name is a, as workloads[0].name already is" in found[1]


def test_every_ready_made_workload_can_be_used_as_it_is(tmp_path: Path) -> None:
    """What it does not say itself is as it is ready made, and no ladder outlasts a patience."""
    inner = ", ".join(f"{{name: {one.value}, like: {one.value}, users: [{one.value}]}}" for one in ReadyMade)
    path = tmp_path / "policy.yaml"
    path.write_text(text(f"workloads: [{inner}]"))
    found = load(path).policies.workloads
    assert {ReadyMade(one.name): one.terms for one in found.entries} == READY_MADE


def test_an_entry_says_otherwise(tmp_path: Path) -> None:
    """Key by key."""
    inner = "{name: p, like: ospool, stand_still_s: 2m, warn: features, at_end: cancel, drain_s: 0}"
    path = tmp_path / "policy.yaml"
    path.write_text(text(f"workloads: [{inner}]"))
    (one,) = load(path).policies.workloads.entries
    terms = one.terms
    assert (terms.stand_still_s, terms.warn, terms.at_end, terms.drain_s) == (
        120.0,
        WarnBy.FEATURES,
        AtEnd.CANCEL,
        0.0,
    )
    assert terms.rungs == READY_MADE[ReadyMade.OSPOOL].rungs
