"""What the controller's munge says of a credential, and what is no word about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.drivers.munge import MungeCredentials
from backfill.ports.errors import DriverError


def unmunge(folder: Path, status: int, said: str) -> MungeCredentials:
    """A munge whose decoding ends like this."""
    program = folder / "unmunge"
    tell = f"echo 'unmunge: {said}' >&2\n" if said else ""
    program.write_text(f"#!/bin/sh\ncat >/dev/null\n{tell}exit {status}\n")
    program.chmod(0o755)
    return MungeCredentials(unmunge=str(program))


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (0, "", None),
        (17, "Error: Replayed credential", None),
        (8, "Error: Invalid credential format", "Error: Invalid credential format"),
        (15, "Error: Expired credential", "Error: Expired credential"),
        (18, "", "the controller's munge refuses it"),
    ],
)
def test_a_verdict(tmp_path: Path, status: int, said: str, verdict: str | None) -> None:
    """The guest made it, so a bad one is the guest's; one that was seen before is a good one."""
    assert unmunge(tmp_path, status, said).check("MUNGE:x:") == verdict


@pytest.mark.parametrize(
    ("status", "said"), [(6, "Error: Failed to access /run/munge"), (1, "snafu"), (7, "")]
)
def test_no_verdict(tmp_path: Path, status: int, said: str) -> None:
    """A munged of the controller that does not answer is not held against the guest."""
    with pytest.raises(DriverError, match=f"{said or 'ended with 7'}.*munged runs on the controller"):
        unmunge(tmp_path, status, said).check("MUNGE:x:")


def test_a_credential_is_for_root_in_guests_and_of_no_use_to_slurm(tmp_path: Path) -> None:
    """Slurm takes an empty payload for any message, so whoever read one could speak as we do."""
    program = tmp_path / "munge"
    program.write_text('#!/bin/sh\nprintf "MUNGE:"; printf "%s," "$@"\n')
    program.chmod(0o755)
    made = MungeCredentials(str(program), life_s=69.5).make()
    assert made == "MUNGE:--string=backfill-proof,--ttl=70,--restrict-uid=0,"
    assert "--restrict-uid=990," in MungeCredentials(str(program), reader=990).make()
