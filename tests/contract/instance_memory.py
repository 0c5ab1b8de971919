"""The part of the instance provider's contract that is about giving memory back."""

from __future__ import annotations

import pytest

from backfill.ports.capabilities import MemoryGiver
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.instance_rig import BALLOON, Rig, born, known


class InstanceMemoryContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_what_was_freed_is_what_the_hypervisor_shows(self, rig: Rig) -> None:
        """All may be taken back; a paused guest cannot give, and one without a balloon says so."""
        host = born(rig)
        rig.booted("vn1")
        provider = rig.provider
        assert isinstance(provider, MemoryGiver)
        with pytest.raises(NotFoundError, match="vn9"):
            provider.give_memory(host, "vn9", 128)
        if BALLOON not in rig.abilities:
            with pytest.raises(RefusedError, match="no balloon"):
                provider.give_memory(host, "vn1", 128)
            return
        before_mb = known(rig, host).rss_mb or 0
        freed_mb = provider.give_memory(host, "vn1", 128)
        after_mb = known(rig, host).rss_mb or 0
        assert freed_mb > 0
        assert abs(before_mb - after_mb - freed_mb) <= 16
        provider.give_memory(host, "vn1", None)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError, match="paused"):
            provider.give_memory(host, "vn1", 128)
