"""A guest goes on although a host that it left, or did not come to, took its disk from QEMU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.migration.transfer import Carriage
from backfill.drivers.libvirt.ownership import User
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.ports.errors import DriverError
from tests.contract.instance_rig import born, state
from tests.contract.libvirt_testdriver import TestDriverRig, TestHypervisor

QEMU = (64055, 64056)


class Owned(TestHypervisor):
    """QEMU has a user of its own there; a move goes as `moving` does it."""

    __test__ = False
    user: User | None = QEMU
    fails = False
    rig: TestDriverRig
    resumed: list[int]  # how often the disk was given away when a guest went on

    def qemu_user(self) -> User | None:
        return self.user

    def resume(self, name: str) -> None:
        self.resumed.append(len(_given))
        super().resume(name)

    def migrate(
        self,
        name: str,
        target_uri: str,
        data_uri: str | None,
        stay_paused: bool,
        terms: MoveTerms,
        carriage: Carriage | None = None,
    ) -> None:
        if self.fails:
            raise DriverError(name, "the emulator there has died")
        there = self.rig.provider._pool.on("hv2")
        there.define(name, self.document(name))
        there.start(name)
        there._on(name, lambda domain: domain.suspend())
        self.destroy(name)


_given: list[tuple[object, ...]] = []


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Owned]]:
    """For one test; what it gives away is in `_given`, and stays as it was."""
    _given.clear()
    monkeypatch.setattr(os, "chown", lambda *call: _given.append(call))

    class Now(Owned):
        __test__ = False

    Now.resumed = []
    yield Now
    Now.rig.end()


def _paused(tmp_path: Path, kind: type[Owned]) -> tuple[TestDriverRig, str, Path]:
    rig = TestDriverRig(tmp_path, kind)
    kind.rig = rig
    host = born(rig)
    rig.provider.pause(host, "vn1")
    return rig, host, Path(rig.provider._pool.store_on(host).files("vn1").disk)


def test_a_guest_has_its_disk_before_it_goes_on(tmp_path: Path, owned: type[Owned]) -> None:
    """Its host took it back late, when the libvirtd of the other came back after a failed move."""
    rig, host, disk = _paused(tmp_path, owned)
    rig.provider.thaw(host, "vn1")
    assert _given == [(disk, *QEMU)]
    assert owned.resumed == [1]
    assert state(rig) is InstanceState.RUNNING


def test_a_move_that_fails_leaves_the_disk_with_qemu(tmp_path: Path, owned: type[Owned]) -> None:
    """The host to which it did not come took it back."""
    rig, host, disk = _paused(tmp_path, owned)
    owned.fails = True
    with pytest.raises(DriverError, match="there has died"):
        rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is InstanceState.PAUSED
    assert _given[1:] == [(disk, *QEMU)]  # once that it could leave, and once as it stayed


def test_a_moved_guest_has_its_disk_whoever_had_it_before(tmp_path: Path, owned: type[Owned]) -> None:
    """A failed move before it has left the disk root's: that is not whom it is given to."""
    rig, host, disk = _paused(tmp_path, owned)
    rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig, host="hv2") is InstanceState.PAUSED
    assert _given[1:] == [(disk, *QEMU)]
    rig.provider.delete("hv2", "vn1")


@pytest.mark.parametrize("user", [None, (0, 0)])
def test_nothing_is_given_where_qemu_is_root(tmp_path: Path, owned: type[Owned], user: User | None) -> None:
    """Nor where libvirt does not say as whom it runs."""
    owned.user = user
    rig, host, _ = _paused(tmp_path, owned)
    rig.provider.thaw(host, "vn1")
    assert (_given, owned.resumed) == ([], [0])


def test_what_cannot_be_given_is_told_and_the_guest_goes_on_if_it_can(
    tmp_path: Path, owned: type[Owned], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """QEMU may have its disk open: that it cannot open it anew is no reason not to try."""

    def no(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    rig, host, disk = _paused(tmp_path, owned)
    monkeypatch.setattr(os, "chown", no)
    rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.RUNNING
    assert f"{disk}: cannot give it to 64055:64056" in caplog.text
    assert "run the daemon as root" in caplog.text
