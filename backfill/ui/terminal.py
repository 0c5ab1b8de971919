"""Values as people read them: tables, ages, times; colours and safe streams for a terminal."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO, cast

from backfill.core.model.visible import visible
from backfill.ui.outfile import OutputError


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers: by rich in a terminal, else as aligned text without colours."""
    if sys.stdout.isatty():
        _rich_table(headers, rows)
        return
    for line in aligned([headers, *rows]):
        print(line)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines whose columns stand below one another."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _rich_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # rich takes longer to import than everything else together.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for header in headers:
        made.add_column(header, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell, style=STYLES.get(cell.split(" ")[0], "")) for cell in row))
    Console(highlight=False).print(made)


# Colours of words that stand alone in a cell.
STYLES = {
    "ready": "green",
    "running": "green",
    "up": "green",
    "booting": "cyan",
    "returning": "cyan",
    "moving": "cyan",
    "evicting": "yellow",
    "parked": "yellow",
    "throttled": "yellow",
    "paused": "yellow",
    "suspended": "yellow",
    "draining": "yellow",
    "closed": "yellow",
    "failed": "red",
    "given-up": "bold red",
    "unreachable": "bold red",
    "crashed": "bold red",
}


def emphasis(text: str, style: str = "1") -> str:
    """Make the text bold (or give it another SGR style) in a terminal that may have colours."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain or not sys.stdout.isatty():
        return text
    return f"\x1b[{style}m{text}\x1b[0m"


def sign(mark: str, plain: str) -> str:
    """Return a mark, or the plain one for an output whose encoding lacks it."""
    return mark if carried(mark) else plain


def carried(text: str) -> bool:
    """Return True if the encoding of stdout has all of these characters."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def age(seconds: float) -> str:
    """Write a length of time with its two largest units: 0.4s, 12s, 2m03s, 4h05m, 3d02h."""
    if seconds < 0:
        return "0s"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def local_time(at_s: float) -> str:
    """Epoch seconds as local ISO time with its offset, to the millisecond."""
    return datetime.fromtimestamp(at_s, tz=UTC).astimezone().isoformat(timespec="milliseconds")


def clock_time(at_s: float) -> str:
    """Epoch seconds as local time of day, for lists whose day is told elsewhere."""
    return datetime.fromtimestamp(at_s, tz=UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]


# Our own colours; in parentheses, so that `split` keeps them.
_COLOUR = re.compile(r"(\x1b\[[0-9;]*m)")


class Guarded:
    """A stream whose text is safe for terminals; all else is the stream's own.

    OutputError where it takes no more, as on a full disk; BrokenPipeError where its reader has left.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write it with nothing but ends of lines, tabs and, in a terminal, our own colours."""
        if not _safe(text):
            keep = self.stream.isatty()
            parts = _COLOUR.split(text) if keep else [text]
            text = "".join(p if at % 2 else _cleaned(p) for at, p in enumerate(parts))
        try:
            return self.stream.write(text)
        except OSError as error:
            raise _no_more(self.stream, error) from error

    def flush(self) -> None:
        """Write what waits."""
        try:
            self.stream.flush()
        except OSError as error:
            raise _no_more(self.stream, error) from error

    def writelines(self, lines: Any) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _no_more(stream: TextIO, error: OSError) -> Exception:
    """Return what is to be raised instead of this error of a stream."""
    if isinstance(error, BrokenPipeError):
        return error
    be_quiet_from_now(stream)  # what waits would be tried, and told, again at each flush
    return OutputError(f"cannot write {stream.name.strip('<>')}: {error.strerror}; send it somewhere else")


def be_quiet_from_now(stream: TextIO) -> None:
    """Let all that is still written, by the interpreter's last flush at least, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _safe(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def _cleaned(text: str) -> str:
    lines = (line.split("\t") for line in text.split("\n"))
    return "\n".join("\t".join(map(visible, parts)) for parts in lines)


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Guard stdout and stderr inside of the block. What their encoding lacks is written as an escape."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.stdout, sys.stderr = (cast(TextIO, Guarded(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def unguarded(stream: TextIO) -> TextIO:
    """Return the stream itself, for those who draw on the terminal by their own means."""
    return stream.stream if isinstance(stream, Guarded) else stream
