"""The part of the instance provider's contract that is about devices."""

from __future__ import annotations

import pytest

from backfill.core.model.devices import Sharing, Wanted
from backfill.core.model.fleet import InstanceState
from backfill.engine.execute.devices import holds_devices, move_with_devices, put_in, take_out
from backfill.ports.capabilities import DeviceHolder
from backfill.ports.errors import BusyError, DriverError, NoCapacityError, NotFoundError, RefusedError
from tests.contract.instance_rig import DEVICES, Rig, born, known, state
from tests.contract.lacking import lacking

REGION_MB = 4


def _to_disk_and_back(rig: Rig, host: str) -> None:
    """With its devices plugged it is not saved; it keeps its right to them while it is."""
    provider = rig.provider
    assert isinstance(provider, DeviceHolder)
    with pytest.raises(RefusedError, match="devices are plugged"):
        rig.provider.suspend(host, "vn1")
    take_out(provider, host, "vn1")
    (kept,) = provider.holdings()
    assert not kept.plugged
    rig.provider.suspend(host, "vn1")
    assert known(rig, host).devices_of == kept.job
    rig.provider.restore(host, "vn1")
    rig.provider.thaw(host, "vn1")
    put_in(provider, host, "vn1")
    assert known(rig, host).plugged


class InstanceDevicesContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_a_region_is_plugged_moved_and_given_back(self, rig: Rig) -> None:
        """It goes out of the guest before the move and in again after it; twice is fine."""
        if DEVICES not in rig.abilities:
            lacking(DEVICES)
        source, target = born(rig), rig.provider.hosts[1]
        rig.booted("vn1")
        provider = rig.provider
        assert isinstance(provider, DeviceHolder)
        wanted = Wanted("vn1", source, "7", "ann", regions=(REGION_MB,))
        held = provider.hold(wanted, Sharing.ONE_JOB)
        assert provider.hold(wanted, Sharing.ONE_JOB) == held
        assert provider.holdings() == (held,)
        assert holds_devices(provider, "vn1")
        move_with_devices(provider, source, "vn1", target)
        assert state(rig, host=target) is InstanceState.RUNNING
        (there,) = provider.holdings()
        assert (there.host, there.region_mb) == (target, REGION_MB)
        assert there.regions != held.regions
        _to_disk_and_back(rig, target)
        assert provider.holdings() == (there,)
        for _ in range(2):
            provider.give_back(target, "vn1")
        assert provider.holdings() == ()
        rig.provider.suspend(target, "vn1")
        rig.provider.delete(target, "vn1")

    def test_a_job_shares_several_regions(self, rig: Rig) -> None:
        """All of them or none, each of its own size, the same ones for its fellows."""
        if DEVICES not in rig.abilities:
            lacking(DEVICES)
        host = born(rig)
        rig.booted("vn1")
        provider = rig.provider
        assert isinstance(provider, DeviceHolder)
        wanted = Wanted("vn1", host, "7", "ann", regions=(REGION_MB, 2 * REGION_MB))
        held = provider.hold(wanted, Sharing.ANYONE)
        assert [region.size_mb for region in held.regions] == [REGION_MB, 2 * REGION_MB]
        assert len({region.id for region in held.regions}) == 2
        assert known(rig, host).region_mb == 3 * REGION_MB
        assert provider.hold(wanted, Sharing.ANYONE) == held
        provider.unplug(host, "vn1")
        assert not known(rig, host).plugged
        provider.plug(host, "vn1")
        assert provider.holdings() == (held,)
        provider.give_back(host, "vn1")
        assert provider.holdings() == ()
        rig.provider.delete(host, "vn1")

    def test_a_move_that_fails_leaves_its_devices_where_they_were(self, rig: Rig) -> None:
        """The way back: the guest works on at the source and has its region."""
        if DEVICES not in rig.abilities:
            lacking(DEVICES)
        source, target = born(rig), rig.provider.hosts[1]
        rig.booted("vn1")
        provider = rig.provider
        assert isinstance(provider, DeviceHolder)
        held = provider.hold(Wanted("vn1", source, "7", "ann", regions=(REGION_MB,)), Sharing.ANYONE)
        with rig.unreachable(target), pytest.raises(DriverError):
            move_with_devices(provider, source, "vn1", target)
        rig.until(lambda: rig.provider.observe(target).host.reachable)
        assert state(rig) is InstanceState.RUNNING
        assert provider.holdings() == (held,)
        for _ in range(5):  # at once again: what has just left may not be in the way of it
            provider.unplug(source, "vn1")
            provider.plug(source, "vn1")
        assert state(rig) is InstanceState.RUNNING
        rig.provider.delete(source, "vn1")
        assert provider.holdings() == ()

    def test_what_is_not_there_or_does_not_run_gets_nothing(self, rig: Rig) -> None:
        """A refusal leaves no holding behind; that needs no device."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, DeviceHolder)
        with pytest.raises(NotFoundError):
            provider.hold(Wanted("vn9", host, "7", "ann", regions=(4,)), Sharing.ANYONE)
        with pytest.raises(NoCapacityError, match="virtual functions"):
            provider.hold(Wanted("vn1", host, "7", "ann", functions=99), Sharing.ANYONE)
        assert provider.holdings() == ()
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError, match="running guest"):
            provider.hook(host, "vn1", "before-move")
