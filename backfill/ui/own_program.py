"""How this program is begun anew, by itself."""

from __future__ import annotations

import sys
from pathlib import Path


def own_place() -> str:
    """Return where it is installed: its one file, its environment, or its package among those of others."""
    if sys.argv[0].endswith(".pyz"):
        return str(Path(sys.argv[0]).absolute())
    return sys.prefix if sys.prefix != sys.base_prefix else str(Path(__file__).parents[1])


def own_program() -> tuple[str, ...]:
    """Return the words that begin it: the package, or the one file that it came in.

    Python would look for the package in the current directory first (-P), which may be anybody's.
    """
    file = sys.argv[0]
    if file.endswith(".pyz"):
        return (sys.executable, str(Path(file).absolute()))
    return (sys.executable, "-P", "-m", "backfill")
