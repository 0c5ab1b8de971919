"""Fewer looks for memory that can be given back while a replay goes on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 500_000


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Nearly all that a replay makes is kept to its end: to look again and again whether parts of
    it refer to nothing but each other costs a twentieth of its time."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
