"""The releases of Slurm for files whose scenarios hold on all of them."""

from __future__ import annotations

import pytest

from backfill.lab import roots

# CI runs them on the installed release, `make soak` on the others.
RELEASES = [roots.INSTALLED, *(pytest.param(r, marks=pytest.mark.soak) for r in roots.SUITES)]
