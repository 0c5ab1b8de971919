"""How a test hides what is saved of an instance, also from root, who may read everything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NOBODY = 65_534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Inside, this process may not read what others keep for themselves, as the user slurm."""
    if os.geteuid() != 0:  # then it may not anyway
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def hidden(path: Path) -> Iterator[str]:
    """Inside, a folder lies where the file was: opening it fails, and that is not "no file"."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    path.mkdir()
    try:
        yield str(path)
    finally:
        path.rmdir()
        aside.rename(path)


@contextmanager
def unnoticed(path: Path) -> Iterator[None]:
    """Inside, the file is not seen until its folder is opened: an NFS client knows of none."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    real = os.open

    def opens(where: Any, flags: int, *more: Any, **others: Any) -> int:
        if flags & os.O_DIRECTORY and where == path.parent and aside.exists():
            aside.rename(path)
        return real(where, flags, *more, **others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", opens)
        yield
