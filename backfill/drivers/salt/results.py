"""Reads what Salt returns, strictly: silence and half an answer are no success."""

from __future__ import annotations

from backfill.drivers.salt.inside import problem_in
from backfill.ports import StateRun

_SILENT = "it did not answer"


def state_run(node: str, answer: object) -> StateRun:
    """Of a full return of `state.apply`; None, and whatever is no return, is silence."""
    if not isinstance(answer, dict) or answer.get("out") == "no_return":
        return StateRun(node, answered=False, problem=_SILENT)
    states = answer.get("ret")
    changed = []
    for key, state in states.items() if isinstance(states, dict) else ():
        # None is what a state says in a test run that would change something.
        if isinstance(state, dict) and (state.get("result") is None or state.get("changes")):
            changed.append((str(state.get("__id__", key)), str(state.get("comment", ""))))
    problem = problem_in(states)
    if not problem and answer.get("retcode") not in (0, None):
        problem = f"it ended with status {answer['retcode']}"
    return StateRun(node, True, problem, tuple(changed))


def look(node: str, answer: object) -> StateRun | None:
    """Of a full return of the guest's look; None: only a run of the states can tell."""
    if not isinstance(answer, dict) or answer.get("out") == "no_return":
        return StateRun(node, answered=False, problem=_SILENT)
    seen = answer.get("ret")
    if answer.get("retcode") == 0 and isinstance(seen, dict) and seen.get("same") is True:
        return StateRun(node, answered=True, looked=True)
    return None
