"""Every word that Slurm has for a state is split into base and flags."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import JobState, NodeBase
from backfill.drivers.slurm.reading.states import job_state, node_state


@pytest.mark.parametrize(
    ("text", "base", "flags"),
    [
        ("IDLE", NodeBase.IDLE, set()),
        ("IDLE+CLOUD+DYNAMIC_NORM+DRAIN", NodeBase.IDLE, {"CLOUD", "DYNAMIC_NORM", "DRAIN"}),
        ("FUTURE+DRAIN+DYNAMIC_NORM", NodeBase.FUTURE, {"DRAIN", "DYNAMIC_NORM"}),
        ("MIXED+COMPLETING+NOT_RESPONDING", NodeBase.MIXED, {"COMPLETING", "NOT_RESPONDING"}),
        ("DOWN+?", NodeBase.DOWN, {"?"}),
        ("idle*", NodeBase.IDLE, {"NOT_RESPONDING"}),
        ("drng@", NodeBase.MIXED, {"DRAIN", "REBOOT_REQUESTED"}),
        ("drain$", NodeBase.IDLE, {"DRAIN", "MAINTENANCE"}),
        ("down~", NodeBase.DOWN, {"POWERED_DOWN"}),
        ("alloc+", NodeBase.ALLOCATED, {"COMPLETING"}),
        ("mix-", NodeBase.MIXED, {"PLANNED"}),
        ("comp", NodeBase.IDLE, {"COMPLETING"}),
        ("unk*", NodeBase.UNKNOWN, {"NOT_RESPONDING"}),
        ("inval", NodeBase.DOWN, {"INVALID_REG"}),
    ],
)
def test_node_states(text: str, base: NodeBase, flags: set[str]) -> None:
    """The full form of scontrol and the short one of sinfo mean the same."""
    assert node_state(text) == (base, frozenset(flags))


@pytest.mark.parametrize("text", ["", "+", "WONDERFUL", "*", "IDLE DRAIN"])
def test_an_unknown_node_state_is_an_error(text: str) -> None:
    """It is never taken for a state that it is not."""
    with pytest.raises(ValueError, match="node state"):
        node_state(text)


@pytest.mark.parametrize("state", list(JobState))
def test_base_states_of_jobs(state: JobState) -> None:
    """Without a flag the word is the base."""
    assert job_state(state.value) == (state, frozenset())


@pytest.mark.parametrize(
    ("text", "base", "flag"),
    [
        ("CONFIGURING", JobState.RUNNING, "CONFIGURING"),
        ("CF", JobState.RUNNING, "CONFIGURING"),
        ("REQUEUED", JobState.PENDING, "REQUEUED"),
        ("SPECIAL_EXIT", JobState.PENDING, "SPECIAL_EXIT"),
        ("STOPPED", JobState.RUNNING, "STOPPED"),
        ("STAGE_OUT", JobState.COMPLETED, "STAGE_OUT"),
    ],
)
def test_flags_that_hide_the_base(text: str, base: JobState, flag: str) -> None:
    """squeue shows one word; the base that belongs to it is known."""
    assert job_state(text) == (base, frozenset({flag}))


def test_completing_is_read_with_the_end_time() -> None:
    """A requeued job that completes its old run is pending; any other has ended."""
    assert job_state("COMPLETING", ended=True) == (JobState.COMPLETED, frozenset({"COMPLETING"}))
    assert job_state("CG", ended=False) == (JobState.PENDING, frozenset({"COMPLETING"}))


@pytest.mark.parametrize("text", ["", "?", "LAUNCHED"])
def test_an_unknown_job_state_is_an_error(text: str) -> None:
    """It is never taken for a state that it is not."""
    with pytest.raises(ValueError, match="job state"):
        job_state(text)
