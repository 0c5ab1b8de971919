"""Scenarios that were played as a JUnit report: a test suite per play, a test per expectation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from backfill.sim.scenarios.player import Outcome
from backfill.sim.scenarios.verdicts import ScenarioVerdict
from backfill.ui.report.style import escape

_ALLOWED = "\t\n\r"


def junit_lines(plays: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    """Yield the file; `plays` by name. Times are seconds of the stage's clock."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for name, outcome in plays:
        failed = sum(not verdict.ok for verdict in outcome.verdicts)
        yield (
            f'<testsuite name="{_text(name)}" tests="{len(outcome.verdicts)}" '
            f'failures="{failed}" errors="0" skipped="0" '
            f'time="{outcome.end_s - outcome.start_s:.3f}">\n'
        )
        for verdict in outcome.verdicts:
            yield _case(name, verdict)
        yield "</testsuite>\n"
    yield "</testsuites>\n"


def _case(suite: str, verdict: ScenarioVerdict) -> str:
    head = f'<testcase classname="{_text(suite)}" name="{_text(verdict.title)}" time="0"'
    if verdict.ok:
        return f"{head}/>\n"
    details = _text("\n".join(verdict.details))
    return f'{head}><failure message="{_text(verdict.text)}">{details}</failure></testcase>\n'


def _text(text: str) -> str:
    """For an element or an attribute. XML has no way to say most control characters."""
    return escape("".join(c for c in text if _is_char(c)))


def _is_char(char: str) -> bool:
    surrogate = "\ud800" <= char <= "\udfff"
    return char in _ALLOWED or (char >= " " and not surrogate and char not in "\ufffe\uffff")
