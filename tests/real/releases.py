"""The releases of Slurm and of hypervisors for files whose scenarios hold on all of them."""

from __future__ import annotations

import pytest

from backfill.lab import roots
from backfill.lab.spec import HYPERVISORS as ALL_HYPERVISORS

# `make test` and the gate run them on the installed release, `make soak` on the others.
RELEASES = [roots.INSTALLED, *(pytest.param(r, marks=pytest.mark.soak) for r in roots.SUITES)]
# Where releases may well differ `make test` has the oldest, the gate the newest as well; `make soak`
# those between.
OLDEST_AND_NEWEST = [
    roots.RELEASES[0],
    *(pytest.param(r, marks=pytest.mark.soak) for r in roots.RELEASES[1:-1]),
    pytest.param(roots.RELEASES[-1], marks=pytest.mark.gate),
]
HYPERVISORS = [
    ALL_HYPERVISORS[0],
    *(pytest.param(name, marks=pytest.mark.soak) for name in ALL_HYPERVISORS[1:]),
]
