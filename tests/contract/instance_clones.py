"""The part of the instance provider's contract that is about how an instance comes into being."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.fleet import CloneMethod, InstanceState, Tag
from backfill.ports.capabilities import ParentKeeper
from backfill.ports.errors import RefusedError
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
from tests.contract.lacking import lacking


class InstanceClonesContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_a_parent_can_be_made_ahead(self, rig: Rig) -> None:
        """The host tells of it, once, for its image and shape; clones and waste do not take it."""
        host = rig.provider.hosts[0]
        if INSTANT not in rig.abilities:
            lacking(INSTANT)
        keeper = rig.provider
        assert isinstance(keeper, ParentKeeper)
        for _ in range(2):
            keeper.make_parent(host, rig.image, SMALL)
        seen = rig.provider.observe(host)
        assert seen.host.has_parent(rig.image, SMALL)
        assert not seen.host.has_parent(rig.image, replace(SMALL, memory_mb=512))
        assert seen.host.parents_starting == ()
        assert seen.instances == {}
        rig.provider.create(replace(spec(rig), method=CloneMethod.INSTANT))
        keeper.cancel_parents(host)
        assert rig.provider.observe(host).host.parents == seen.host.parents
        rig.until(lambda: state(rig) is InstanceState.RUNNING)
        with pytest.raises(RefusedError):
            keeper.make_parent(host, "nonsense", SMALL)

    @pytest.mark.parametrize("method", CloneMethod)
    def test_however_it_was_made_it_behaves_alike(self, rig: Rig, method: CloneMethod) -> None:
        """Tag, size, pause, suspend, migration, waking and end are the same for all methods."""
        if method is CloneMethod.INSTANT and INSTANT not in rig.abilities:
            lacking(INSTANT)
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
