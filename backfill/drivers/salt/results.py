"""Reads what Salt returns, strictly: silence and half an answer are no success."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from backfill.ports.provider import StateRun

_SILENT = "it did not answer; see that its minion runs and reaches the master"
# Salt tells of a pillar before what is wrong with it.
_PREFACE = "Additional info follows:\n\n- "
_SLS = re.compile(r"Rendering SLS '(?:\w+:)?([\w.-]+)' failed(?:, render error)?:\s*")
# Where something is wrong: in a file that another one took in, in the template, in what came of it.
# Our own guard is never wrong itself: it tells of the pillar.
_INCLUDED = re.compile(r"/files/\w+/(?!backfill/guard)(\S+)\((\d+)\):$", re.MULTILINE)
_TEMPLATE = re.compile(r"; (line \d+)$", re.MULTILINE)
_RENDERED = re.compile(r'in "<unicode string>", (line \d+)')


def state_run(node: str, answer: object, *, test: bool) -> StateRun:
    """Of a full return of `state.apply`, or of a trial of it; None, and whatever is no return, is silence."""
    if not isinstance(answer, dict) or answer.get("out") == "no_return":
        return StateRun(node, answered=False, problem=_SILENT)
    states = answer.get("ret")
    changed = []
    for key, state in states.items() if isinstance(states, dict) else ():
        # None is what a state says where it was tried only, and would change something.
        if isinstance(state, dict) and (state.get("result") is None or state.get("changes")):
            changed.append((str(state.get("__id__", key)), str(state.get("comment", ""))))
    problem = problem_in(states, test=test)
    if not problem and answer.get("retcode") not in (0, None):
        problem = f"it ended with status {answer['retcode']}"
    return StateRun(node, True, problem or "", tuple(changed))


def look(node: str, answer: object) -> StateRun | None:
    """Of a full return of the guest's look; None: only a run of the states can tell."""
    if not isinstance(answer, dict) or answer.get("out") == "no_return":
        return StateRun(node, answered=False, problem=_SILENT)
    seen = answer.get("ret")
    if answer.get("retcode") == 0 and isinstance(seen, dict) and seen.get("same") is True:
        return StateRun(node, answered=True, looked=True)
    return None


def problem_in(answer: object, *, test: bool = False) -> str | None:
    """Return why a minion's answer to `state.apply` is no success; None if it is one.

    A list is what a state file that does not render gives; a text is what Salt gives for no answer;
    and an empty answer means that nothing was done. `test`: it was asked what it would do.
    """
    if isinstance(answer, list):
        return "; ".join(rendering_error(str(error)) for error in answer)[:500]
    if not isinstance(answer, dict) or not answer:
        return f"it answered {str(answer)[:200]!r} instead of states"
    failed = [
        f"{_told(state, '__id__', key)}: {_told(state, 'comment', '')}"
        for key, state in answer.items()
        if not _holds(state, test)
    ]
    return "; ".join(failed)[:500] or None


def _holds(state: object, test: bool) -> bool:
    """Return True if the state is done. One that was only tried says None, which is enough in a trial."""
    if not isinstance(state, dict):
        return False
    result = state.get("result", False)
    return result is True or (test and result is None)


def _told(state: object, key: str, otherwise: object) -> object:
    return state.get(key, otherwise) if isinstance(state, dict) else otherwise


def rendering_error(text: str, folders: Sequence[str] = ()) -> str:
    """Say in one sentence what is wrong and where: Salt adds templates, with secrets, and traces.

    `folders`: of states and pillar, in which a file's whole path is looked for.
    """
    _, preface, told = text.rpartition(_PREFACE)
    of_pillar = "the pillar: " if preface else ""
    told = _SLS.sub(lambda found: f"{_file(found[1], folders)}: ", told.strip(), count=1)
    first, *rest = [line.strip() for line in told.splitlines()] or ["an error without a word"]
    places = [f"{name} line {line}" for name, line in _INCLUDED.findall(told)]
    places += _TEMPLATE.findall(told) if not _TEMPLATE.search(first) else []
    if lines := _RENDERED.findall(told):
        first = "; ".join([first, *(x for x in rest if not x.startswith(("in ", "Trace")))][:2])
        places.append(f"{lines[-1]} of what it renders to")
    return "; ".join([of_pillar + first, *places[:1]])


def _file(name: str, folders: Sequence[str]) -> str:
    """Of a state or pillar file as Salt names it: its path where that is found."""
    ways = [name.replace(".", "/") + end for end in (".sls", "/init.sls")]
    paths = [Path(folder, way) for folder in folders for way in ways]
    return next((str(path) for path in paths if path.is_file()), name)
