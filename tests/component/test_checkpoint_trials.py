"""A trial that could not be made is no verdict on the checkpoint that was to be tried."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from backfill.core.model.fleet import Checkpoint
from backfill.drivers.libvirt.checkpoints import trials
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NoCapacityError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)

MANIFEST = SimpleNamespace(checkpoint=Checkpoint("5-1", "vn1", job="5"))
POOL = cast(Pool, SimpleNamespace(on=str, checkpoints=SimpleNamespace(verify=lambda identity: [MANIFEST])))


@pytest.fixture
def qemu_img(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let `qemu-img` be this script."""

    def place(script: str) -> None:
        program = tmp_path / "qemu-img"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path))
    return place


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (UnreachableError, UnreachableError),
        (UnreadableError, UnreadableError),
        (BusyError, BusyError),
        (NoCapacityError, NoCapacityError),
        (RefusedError, BadOutputError),
        (DriverError, BadOutputError),
    ],
)
def test_what_a_trial_ends_with(
    monkeypatch: pytest.MonkeyPatch, raised: type[DriverError], told: type[DriverError]
) -> None:
    """A host that is full, busy or silent says nothing about what was to be loaded there."""

    def fail(*_args: Any) -> None:
        raise raised("vn1", "it went wrong")

    monkeypatch.setattr(trials, "_try", fail)
    with pytest.raises(DriverError) as caught:
        trials.rehearse(POOL, "hv2", "5-1")
    assert type(caught.value) is told


@pytest.mark.parametrize("script", ["exit 0", "echo '7 leaked clusters'; exit 3"])
def test_a_disk_that_is_whole(qemu_img: Callable[[str], None], tmp_path: Path, script: str) -> None:
    """Clusters that nothing refers to are waste, and the guest can go on."""
    asked = tmp_path / "asked"
    qemu_img(f"echo $* >{asked}; {script}")
    trials._check_disk("vn1", Path("disk.qcow2"))
    assert asked.read_text().startswith("check ")


def test_a_disk_that_is_corrupt(qemu_img: Callable[[str], None]) -> None:
    """The one answer that condemns it."""
    qemu_img("echo 'ERROR cluster 5 refcount=0' >&2; exit 2")
    with pytest.raises(BadOutputError, match="its disk is damaged: ERROR cluster 5"):
        trials._check_disk("vn1", Path("disk.qcow2"))


@pytest.mark.parametrize("script", ["echo 'Check failed: I/O' >&2; exit 1", "kill -9 $$", None])
def test_a_disk_that_was_not_checked(qemu_img: Callable[[str], None], script: str | None) -> None:
    """A program that failed itself, or is not there, has not looked."""
    if script:
        qemu_img(script)
    with pytest.raises(UnreadableError, match="was not checked"):
        trials._check_disk("vn1", Path("disk.qcow2"))
