"""Problems of a policy file: each is one sentence with its place and remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

_LONGEST_QUOTE = 60


@dataclass(frozen=True, slots=True)
class Place:
    """A spot in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `line` is 0 when it is about the file as a whole."""

    file: str
    line: int
    column: int
    path: str  # of the key, such as instances.flavour.memory_mb; empty: the file as a whole
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        spot = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        about = f"{self.path} {self.what}" if self.path else self.what
        return f"{spot}: {about}" + (f"; {self.remedy}" if self.remedy else "")

    def to_json(self) -> dict[str, object]:
        """Plain values, with the whole sentence as `text`."""
        return {**asdict(self), "text": str(self)}


class ConfigError(Exception):
    """The policy file cannot be used. `str()` has one sentence per line, in the file's order."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def quote(text: str) -> str:
    """Show a piece of the file inside a sentence: in quotes, on one line, and not too long."""
    short = text if len(text) <= _LONGEST_QUOTE else text[: _LONGEST_QUOTE - 1] + "…"
    shown = repr(short)[1:-1] if not short.isprintable() else short
    return f"'{shown}'"
