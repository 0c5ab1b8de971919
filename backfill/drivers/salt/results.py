"""Reads what Salt returns, strictly: silence and half an answer are no success."""

from __future__ import annotations

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


def problem_in(answer: object) -> str:
    """Why a minion's answer to `state.apply` is no success; empty when it is one.

    A list is what a state file that does not render gives; a text is what Salt gives for no answer;
    and an empty answer means that nothing was done.
    """
    if isinstance(answer, list):
        return "; ".join(str(error).strip().partition("\n")[0] for error in answer)[:500]
    if not isinstance(answer, dict) or not answer:
        return f"it answered {str(answer)[:200]!r} instead of states"
    failed = [
        f"{state.get('__id__', key)}: {state.get('comment', '')}"
        for key, state in answer.items()
        if not isinstance(state, dict) or state.get("result") is False
    ]
    return "; ".join(failed)[:500]
