"""Text from outside, made safe to be seen. It imports little: every command needs it at once."""

from __future__ import annotations

import re

# Ends of lines, whoever counts them; a line of ours stays one line.
_ENDS = re.compile(r"\s*[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def visible(text: str) -> str:
    """Put it on one line, with nothing in it that a terminal, a log or a reader's eye would obey.

    Control characters, marks that turn the direction of writing, and what has no width are written
    as JSON writes them: `\\u001b`. Ends of lines become ` | `.
    """
    if text.isprintable():
        return text
    text = _ENDS.sub(" | ", text.strip("\r\n")).replace("\t", " ")
    return escaped(text)


def escaped(text: str) -> str:
    """Return what is not printable as JSON's escapes; in a JSON document it means the same afterwards."""
    return "".join(c if c.isprintable() else _told(c) for c in text)


def _told(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
