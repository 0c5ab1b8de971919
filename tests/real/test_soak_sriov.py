"""An emulated machine with an SR-IOV card: our tests run in it, on a real kernel's functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.lab import image
from tests.real.sriov_machine import python, run_inside

pytestmark = [pytest.mark.real, pytest.mark.soak]

LIMIT_S = 3600.0
_TESTS = "-m pytest -m inside --basetemp=/run/pytest -p no:cacheprovider -v --durations=0"


def test_functions_of_a_card_are_lent_to_emulators(tmp_path: Path) -> None:
    """Found, given to one, taken back: with libvirt and its emulators in an emulated machine."""
    image.build()
    program = f"BACKFILL_LAB_ROOT=/srv/lab {python(_TESTS)} tests/real/test_in_sriov_machine.py"
    status, said = run_inside(program, tmp_path, LIMIT_S)
    assert status == 0, said
