"""The part of the instance provider's contract that is about how an instance comes into being."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.fleet import CloneMethod, InstanceState, Tag
from tests.contract.instance_rig import (
    CARRY,
    CLUSTER,
    INSTANT,
    MOVE,
    SAVE_PAUSED,
    SMALL,
    WAKE,
    Rig,
    spec,
    state,
)


class InstanceClonesContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    @pytest.mark.parametrize("method", CloneMethod)
    def test_however_it_was_made_it_behaves_alike(self, rig: Rig, method: CloneMethod) -> None:
        """Tag, size, pause, suspend, migration, waking and end are the same for all methods."""
        if method is CloneMethod.INSTANT and INSTANT not in rig.abilities:
            assert rig.provider.read(rig.provider.hosts[0], "vn1") is None
            return
        host, other = rig.provider.hosts[:2]
        wanted = replace(spec(rig), method=method)
        rig.provider.create(wanted)
        rig.until(lambda: state(rig) is InstanceState.RUNNING)
        rig.provider.create(wanted)
        seen = rig.provider.observe(host).instances["vn1"]
        assert (seen.tag, seen.resources) == (Tag(CLUSTER, "vn1", 1), SMALL.resources)
        rig.booted("vn1")
        rig.provider.pause(host, "vn1")
        assert state(rig) is InstanceState.PAUSED
        if SAVE_PAUSED not in rig.abilities:
            rig.provider.thaw(host, "vn1")
        rig.provider.suspend(host, "vn1")
        assert state(rig) is InstanceState.SUSPENDED
        rig.provider.restore(host, "vn1")
        place = host
        if {MOVE, CARRY} <= rig.abilities:
            rig.provider.migrate(host, "vn1", other)
            assert state(rig) is None
            place = other
        assert state(rig, host=place) is InstanceState.PAUSED
        rig.provider.thaw(place, "vn1")
        if WAKE in rig.abilities:
            rig.provider.wake(place, "vn1", rig.provider.observe(place).seen_s)
            assert rig.provider.job_processes(place, "vn1") == (0, 0)
        rig.provider.delete(place, "vn1")
        assert state(rig, host=place) is None
