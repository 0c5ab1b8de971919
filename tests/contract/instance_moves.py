"""The part of the instance provider's contract that is about moving from host to host."""

from __future__ import annotations

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.ports.errors import DriverError, NotFoundError, RefusedError
from tests.contract.instance_rig import CARRY, MOVE, Rig, born, known, state


class InstanceMovesContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    @pytest.mark.parametrize("wanted", [InstanceState.RUNNING, InstanceState.PAUSED, InstanceState.SUSPENDED])
    def test_migration_keeps_the_state(self, rig: Rig, wanted: InstanceState) -> None:
        """The instance is on the target in the state it was in, and nowhere else; twice is fine."""
        source, target = born(rig), rig.provider.hosts[1]
        rig.booted("vn1")
        if wanted is InstanceState.PAUSED:
            rig.provider.pause(source, "vn1")
        if wanted is InstanceState.SUSPENDED:
            rig.provider.suspend(source, "vn1")
        needed = CARRY if wanted is InstanceState.SUSPENDED else MOVE
        if needed not in rig.abilities:
            with pytest.raises(DriverError):
                rig.provider.migrate(source, "vn1", target)
            assert state(rig) is wanted
            return
        before = known(rig, source)
        for _ in range(2):
            rig.provider.migrate(source, "vn1", target)
            assert state(rig, host=source) is None
            assert state(rig, host=target) is wanted
        after = known(rig, target)
        assert (after.tag, after.boot_s) == (before.tag, before.boot_s)

    def test_a_suspended_instance_is_restored_where_it_went(self, rig: Rig) -> None:
        """Suspend here, restore there: the old host has nothing left."""
        source, target = born(rig), rig.provider.hosts[1]
        rig.provider.suspend(source, "vn1")
        if CARRY not in rig.abilities:
            with pytest.raises(RefusedError, match="vn1"):
                rig.provider.migrate(source, "vn1", target)
            assert state(rig) is InstanceState.SUSPENDED
            assert state(rig, host=target) is None
            return
        rig.provider.migrate(source, "vn1", target)
        with pytest.raises(NotFoundError):
            rig.provider.restore(source, "vn1")
        rig.provider.restore(target, "vn1")
        rig.provider.thaw(target, "vn1")
        assert state(rig, host=target) is InstanceState.RUNNING
        rig.provider.delete(target, "vn1")

    def test_migration_to_a_silent_host_changes_nothing(self, rig: Rig) -> None:
        """On error the source still has it."""
        source, target = born(rig), rig.provider.hosts[1]
        rig.provider.pause(source, "vn1")
        with rig.unreachable(target), pytest.raises(DriverError):
            rig.provider.migrate(source, "vn1", target)
        rig.until(lambda: rig.provider.observe(target).host.reachable)
        assert state(rig, host=source) is InstanceState.PAUSED
        assert state(rig, host=target) is None
        rig.provider.thaw(source, "vn1")
        assert state(rig, host=source) is InstanceState.RUNNING

    def test_cancelling_a_move_that_is_none_does_nothing(self, rig: Rig) -> None:
        """Whoever comes too late or too early changes nothing; what is not there is an error."""
        host = born(rig)
        rig.provider.cancel_move(host, "vn1")
        assert state(rig) is InstanceState.RUNNING
        rig.provider.pause(host, "vn1")
        rig.provider.cancel_move(host, "vn1")
        assert state(rig) is InstanceState.PAUSED
        with pytest.raises(NotFoundError, match="vn9"):
            rig.provider.cancel_move(host, "vn9")

    def test_migration_to_its_own_host_is_nothing(self, rig: Rig) -> None:
        """There is nowhere to go."""
        host = born(rig)
        rig.provider.migrate(host, "vn1", host)
        assert state(rig) is InstanceState.RUNNING
