"""A checkpoint that is put back by a daemon that dies on the way: never half of two states, and the
next call finishes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.ports.errors import BusyError
from tests.contract.instance_checkpoints import wanted
from tests.contract.instance_rig import CLUSTER, born, known, state
from tests.contract.libvirt_testdriver import TestDriverRig

STEPS = 6  # so often it renames or removes a file of the instance
BEFORE_THE_OLD_MEMORY_GOES = 3


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


class DaemonDies(BaseException):
    """It is killed: nobody tidies up after it."""


def dying(patch: pytest.MonkeyPatch, home: Path, number: int) -> None:
    """Kill whoever renames or removes a file of this folder, just before the `number`th time."""
    left = iter(range(number - 1, -1, -1))

    def dies(original: Callable[..., Any]) -> Callable[..., Any]:
        def touch(path: Path, *args: Any, **terms: Any) -> Any:
            if path.parent == home and next(left, None) == 0:
                raise DaemonDies
            return original(path, *args, **terms)

        return touch

    for name in ("replace", "unlink"):
        patch.setattr(Path, name, dies(getattr(Path, name)))


def home_of(rig: TestDriverRig) -> Path:
    return Path(rig.config.directory, CLUSTER, "vn1")


def kept(rig: TestDriverRig) -> tuple[str, bytes, bytes]:
    """A checkpoint of one that has gone on since; its host, and the kept disk and memory."""
    host, home = born(rig), home_of(rig)
    rig.provider.suspend(host, "vn1")
    (home / "disk.qcow2").write_bytes(b"then")
    then = (home / "memory.save").read_bytes()
    rig.provider.keep(host, wanted(rig, host), None)
    rig.provider.verify("7-1")
    rig.provider.restore(host, "vn1")
    rig.provider.thaw(host, "vn1")
    (home / "disk.qcow2").write_bytes(b"now")
    rig.provider.suspend(host, "vn1")
    with (home / "memory.save").open("ab") as memory:
        memory.write(b"now")
    return host, b"then", then


def killed_before(rig: TestDriverRig, host: str, number: int) -> bool:
    with pytest.MonkeyPatch.context() as patch:
        dying(patch, home_of(rig), number)
        try:
            rig.provider.put_back(host, "vn1", "7-1")
        except DaemonDies:
            return True
    return False


@pytest.mark.parametrize("number", range(1, STEPS + 2))
def test_one_that_is_cut_off_is_off_or_whole_and_can_be_finished(rig: TestDriverRig, number: int) -> None:
    """It may be killed before any step in its folder: a state is the old one, the new one, or none."""
    host, disk, memory = kept(rig)
    home = home_of(rig)
    died = killed_before(rig, host, number)
    assert died == (number <= STEPS)
    seen = state(rig)
    assert seen in (InstanceState.SUSPENDED, InstanceState.OFF)
    if seen is InstanceState.SUSPENDED:
        new = (home / "memory.save").read_bytes() == memory
        assert (home / "disk.qcow2").read_bytes() == (disk if new else b"now")
    rig.provider.put_back(host, "vn1", "7-1")
    assert state(rig) is InstanceState.SUSPENDED
    assert ((home / "disk.qcow2").read_bytes(), (home / "memory.save").read_bytes()) == (disk, memory)
    assert not [path for path in home.iterdir() if path.suffix in (".back", ".coming")]


@pytest.mark.parametrize("number", range(1, STEPS + 2))
def test_so_can_one_on_another_host(rig: TestDriverRig, number: int) -> None:
    """It is known there before it has any state."""
    host, disk, memory = kept(rig)
    rig.provider.delete(host, "vn1")
    killed_before(rig, "hv2", number)
    assert state(rig, host="hv2") in (None, InstanceState.SUSPENDED, InstanceState.OFF)
    rig.provider.put_back("hv2", "vn1", "7-1")
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    home = home_of(rig)
    assert ((home / "disk.qcow2").read_bytes(), (home / "memory.save").read_bytes()) == (disk, memory)
    rig.provider.delete("hv2", "vn1")


def test_memory_that_somebody_else_removed_is_still_not_known_to_be_lost(rig: TestDriverRig) -> None:
    """Also where a return was cut off before, and given up: the guest has gone on since."""
    host, *_ = kept(rig)
    assert killed_before(rig, host, BEFORE_THE_OLD_MEMORY_GOES)
    assert state(rig) is InstanceState.SUSPENDED
    rig.provider.restore(host, "vn1")
    rig.provider.thaw(host, "vn1")
    rig.provider.suspend(host, "vn1")
    with rig.hidden(host, "vn1"):
        assert known(rig, host).state is InstanceState.UNKNOWN
    home = home_of(rig)
    (home / "memory.save").rename(home / "elsewhere")
    assert known(rig, host).state is InstanceState.UNKNOWN
    with pytest.raises(BusyError):
        rig.provider.put_back(host, "vn1", "7-1")
    (home / "elsewhere").rename(home / "memory.save")
    assert state(rig) is InstanceState.SUSPENDED
