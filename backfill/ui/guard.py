"""What stands before stdout and stderr: no byte passes by which text from outside could steer."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from backfill.core.visible import visible

# Our own colours; in parentheses, so that `split` keeps them.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


class Guarded:
    """A stream whose text is safe for terminals; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write it with nothing but ends of lines, tabs and, in a terminal, our own colours."""
        if not _safe(text):
            keep = self.stream.isatty()
            parts = _COLOUR.split(text) if keep else [text]
            text = "".join(p if at % 2 else _cleaned(p) for at, p in enumerate(parts))
        return self.stream.write(text)

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _safe(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _cleaned(text: str) -> str:
    lines = (line.split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(visible, parts)) for parts in lines)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard stdout and stderr inside of the block."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast(TextIO, Guarded(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: TextIO) -> TextIO:
    """The stream itself, for who draws on the terminal by its own means."""
    return stream.stream if isinstance(stream, Guarded) else stream
