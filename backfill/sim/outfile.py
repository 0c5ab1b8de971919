"""Writes a file whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def write_text(path: Path, chunks: Iterable[str]) -> None:
    """Write a file whole or not at all; a device or pipe is written to directly."""
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as out:
            out.writelines(chunks)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as out:
            out.writelines(chunks)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
