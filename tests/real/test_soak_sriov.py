"""An emulated machine with an SR-IOV card: our tests run in it, on a real kernel's functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.lab import image
from tests.real.sriov_machine import python, run_inside

pytestmark = [pytest.mark.real, pytest.mark.soak]

LIMIT_S = 7200.0
_TESTS = "-m pytest -m inside --basetemp=/run/pytest -p no:cacheprovider -v --durations=0"


def test_functions_of_a_card_are_lent_to_emulators(tmp_path: Path) -> None:
    """Found, given to one, taken back: with libvirt and its emulators in an emulated machine."""
    passes("tests/real/test_in_sriov_machine.py", tmp_path)


def test_a_job_gets_a_function_of_a_card_by_the_daemon(tmp_path: Path) -> None:
    """The same for a Slurm job, whose node is a guest in that machine."""
    passes("tests/real/test_in_sriov_job.py", tmp_path)


def passes(tests: str, folder: Path) -> None:
    """Run a file of tests in such a machine."""
    image.build()
    program = f"BACKFILL_LAB_ROOT=/srv/lab {python(_TESTS)} {tests}"
    status, said = run_inside(program, folder, LIMIT_S)
    assert status == 0, said
