"""The part of the instance provider's contract that is about checkpoints."""

from __future__ import annotations

import pytest

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.ports.capabilities import CheckpointKeeper
from backfill.ports.errors import BusyError, NoCapacityError, NotFoundError
from tests.contract.instance_rig import MOVE, Rig, born, known, state
from tests.contract.lacking import lacking


def wanted(rig: Rig, host: str, identity: str = "7-1", *members: str) -> Checkpoint:
    """What the engine would ask for, for vn1."""
    generation = known(rig, host).tag.generation
    return Checkpoint(
        identity,
        "vn1",
        job="7",
        generation=generation,
        host=host,
        members=members or ("vn1",),
        created_s=100.0,
        expires_s=200.0,
    )


class InstanceCheckpointsContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    @pytest.fixture
    def keeper(self, rig: Rig) -> CheckpointKeeper:
        assert isinstance(rig.provider, CheckpointKeeper)
        for old in rig.provider.checkpoints():
            rig.provider.drop(old.id)
        return rig.provider

    def test_only_a_suspended_instance_can_be_kept(self, rig: Rig, keeper: CheckpointKeeper) -> None:
        """Its memory must be complete and its disk at rest."""
        host = born(rig)
        with pytest.raises(BusyError):
            keeper.keep(host, wanted(rig, host), None)
        assert keeper.checkpoints() == ()
        with pytest.raises(NotFoundError):
            keeper.keep(host, Checkpoint("7-1", "vn9"), None)

    def test_a_kept_state_is_listed_verified_put_back_and_dropped(
        self, rig: Rig, keeper: CheckpointKeeper
    ) -> None:
        """The instance works on meanwhile; afterwards it is suspended with the old state."""
        host = born(rig)
        rig.provider.suspend(host, "vn1")
        asked = wanted(rig, host)
        kept = keeper.keep(host, asked, None)
        assert keeper.keep(host, asked, None).id == kept.id
        assert (kept.id, kept.job, kept.members) == ("7-1", "7", ("vn1",))
        assert kept.size_mb > 0
        assert kept.where
        keeper.verify("7-1")  # its checksums are noted before the instance goes on
        rig.provider.restore(host, "vn1")
        rig.provider.thaw(host, "vn1")
        keeper.verify("7-1")
        assert [c.id for c in keeper.checkpoints()] == ["7-1"]
        assert keeper.checkpoints()[0].checksum
        with pytest.raises(BusyError):
            keeper.put_back(host, "vn1", "7-1")
        assert state(rig) is InstanceState.RUNNING
        rig.provider.suspend(host, "vn1")
        keeper.put_back(host, "vn1", "7-1")
        assert state(rig) is InstanceState.SUSPENDED
        rig.provider.restore(host, "vn1")
        rig.provider.thaw(host, "vn1")
        assert state(rig) is InstanceState.RUNNING
        for _ in range(2):
            keeper.drop("7-1")
        assert keeper.checkpoints() == ()
        with pytest.raises(NotFoundError):
            keeper.verify("7-1")

    def test_a_kept_state_can_be_tried_out_on_another_host(self, rig: Rig, keeper: CheckpointKeeper) -> None:
        """It is loaded there and thrown away: no instance comes of it, and nothing changes."""
        if MOVE not in rig.abilities:
            lacking(MOVE)
        host, other = born(rig), rig.provider.hosts[1]
        rig.provider.suspend(host, "vn1")
        keeper.keep(host, wanted(rig, host), None)
        keeper.rehearse(other, "7-1")
        assert rig.provider.observe(other).instances == {}
        assert state(rig) is InstanceState.SUSPENDED
        keeper.drop("7-1")

    def test_the_quota_is_kept(self, rig: Rig, keeper: CheckpointKeeper) -> None:
        """What does not fit is refused with the figures; what there is stays."""
        host = born(rig)
        rig.provider.suspend(host, "vn1")
        with pytest.raises(NoCapacityError, match="does not fit"):
            keeper.keep(host, wanted(rig, host), 0.0001)
        assert keeper.checkpoints() == ()
        assert state(rig) is InstanceState.SUSPENDED
