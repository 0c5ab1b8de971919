"""The releases of Slurm and of hypervisors for files whose scenarios hold on all of them."""

from __future__ import annotations

import pytest

from backfill.lab import roots
from backfill.lab.spec import HYPERVISORS as ALL_HYPERVISORS

# CI runs them on the installed release, `make soak` on the others.
RELEASES = [roots.INSTALLED, *(pytest.param(r, marks=pytest.mark.soak) for r in roots.SUITES)]
# Where releases may well differ CI has the oldest and the newest; `make soak` those between.
OLDEST_AND_NEWEST = [
    roots.RELEASES[0],
    *(pytest.param(r, marks=pytest.mark.soak) for r in roots.RELEASES[1:-1]),
    roots.RELEASES[-1],
]
HYPERVISORS = [
    ALL_HYPERVISORS[0],
    *(pytest.param(name, marks=pytest.mark.soak) for name in ALL_HYPERVISORS[1:]),
]
