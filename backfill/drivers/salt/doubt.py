"""Checks that states render to the same on the master and on the node.

A tree that asks the machine while it is rendered (other grains than those that the master gave it,
a module of Salt's) may say something else on the node. What it comes to is proven by a run only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

# Larger files are copied to nodes, not rendered.
_MOST_BYTES = 1_000_000
# The master knows these two grains for certain; this is how templates ask for them.
_GIVEN = r"""\s*(?:\[\s*|\.get\(\s*)['"](?:backfill|init)['"]"""
_ASKS = re.compile(
    rf"""\bgrains\b(?!{_GIVEN})|\b(?:salt|opts)\s*[\[.]|\b__(?:grains|salt|opts)__|^\#!.*\bpy""", re.MULTILINE
)
# Nobody but Salt renders the states of bare metal, which may ask what it is: `and` asks nobody else.
_OF_METAL = re.compile(
    r"""\{%-?\s+if\s+grains\['backfill'\]\['kind'\] == 'metal' and grains\.get\('os_family'\)"""
)
# Whom a line of a top file means, such as `'backfill:role:node':`; in the next line stands how.
_TARGET = re.compile(r"""^\s*(['"]?)([^#'"\n]+)\1\s*:\s*\n\s*-\s*match:\s*(\w+)""", re.MULTILINE)
_MATCH = re.compile(r"^\s*-\s*match:", re.MULTILINE)
_BY_NAME = ("glob", "pcre", "list")


def doubt(folders: Sequence[str]) -> str | None:
    """Name the file of these trees that asks the machine itself, in one sentence; None: none does.

    One that cannot be read may.
    """
    try:
        for path, text in _texts(folders):
            if _asks(text):
                return f"{path}, which asks the node itself while it is rendered"
    except OSError as error:
        return f"{error.filename}, which cannot be read here ({error.strerror})"
    return None


def _texts(folders: Sequence[str]) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for place, inner, names in os.walk(folder, onerror=_unreadable, followlinks=True):
            # Modules of the tree's own (`_modules`) matter only to templates that call them.
            inner[:] = sorted(name for name in inner if not name.startswith(("_", ".")))
            for name in sorted(names):
                path = Path(place, name)
                if path.is_file() and (at := path.stat()).st_size <= _MOST_BYTES:
                    yield path, _text(path, at.st_mtime_ns, at.st_size)


def _unreadable(error: OSError) -> None:
    """`os.walk` would take a folder that it may not enter for an empty one."""
    if not isinstance(error, FileNotFoundError):  # Salt's own roots need not exist
        raise error


@lru_cache(maxsize=4096)
def _text(path: Path, changed_ns: int, size: int) -> str:
    del changed_ns, size  # the cache's key: a file that was touched is read anew
    return path.read_text(errors="replace")


def _asks(text: str) -> bool:
    if _ASKS.search(_OF_METAL.sub("", text)):
        return True
    targets = _TARGET.findall(text)
    by_role = [
        how in _BY_NAME or (how == "grain" and target.startswith("backfill:")) for _, target, how in targets
    ]
    return len(targets) != len(_MATCH.findall(text)) or not all(by_role)
