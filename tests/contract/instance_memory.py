"""The part of the instance provider's contract that is about giving memory back."""

from __future__ import annotations

from typing import Protocol

import pytest

from backfill.ports.capabilities import MemoryGiver
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.instance_rig import BALLOON, Rig, born, known

_KEPT_MB = 128  # half of what the instance has


class MemoryRig(Rig, Protocol):
    """Beside what every contract needs, guests that use memory."""

    def use_memory(self, host: str, name: str, memory_mb: int) -> None:
        """Let the guest write to so much memory, and free it again; it has booted."""


class InstanceMemoryContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_what_was_freed_is_what_the_hypervisor_shows(self, rig: MemoryRig) -> None:
        """All may be taken back; a paused guest cannot give, and one without a balloon says so.

        What a guest never wrote to has no memory of the host behind it: the balloon takes it as well,
        and frees nothing.
        """
        host = born(rig)
        rig.booted("vn1")
        provider = rig.provider
        assert isinstance(provider, MemoryGiver)
        with pytest.raises(NotFoundError, match="vn9"):
            provider.give_memory(host, "vn9", _KEPT_MB)
        if BALLOON not in rig.abilities:
            with pytest.raises(RefusedError, match="no balloon"):
                provider.give_memory(host, "vn1", _KEPT_MB)
            return
        rig.use_memory(host, "vn1", 150)
        before_mb = known(rig, host).rss_mb or 0
        freed_mb = provider.give_memory(host, "vn1", _KEPT_MB)
        after_mb = known(rig, host).rss_mb or 0
        assert freed_mb >= _KEPT_MB // 2
        assert abs(before_mb - after_mb - freed_mb) <= 16
        provider.give_memory(host, "vn1", None)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError, match="paused"):
            provider.give_memory(host, "vn1", _KEPT_MB)
