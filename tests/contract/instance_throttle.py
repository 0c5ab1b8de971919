"""The part of the instance provider's contract that is about taking CPU time away."""

from __future__ import annotations

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.ports.capabilities import Throttler
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.instance_rig import THROTTLE, Rig, born, known


class InstanceThrottleContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_a_throttled_instance_runs_without_occupying_cpus(self, rig: Rig) -> None:
        """It is seen so until it gets its CPUs back; twice is fine; a pause keeps it."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, Throttler)
        if THROTTLE not in rig.abilities:
            with pytest.raises(RefusedError):
                provider.throttle(host, "vn1", 5)
            return
        for _ in range(2):
            provider.throttle(host, "vn1", 5)
            seen = known(rig, host)
            assert (seen.state, seen.throttled, seen.occupies_cpu) == (InstanceState.RUNNING, True, False)
            assert rig.provider.observe(host).instances["vn1"].throttled
        rig.provider.pause(host, "vn1")
        rig.provider.thaw(host, "vn1")
        assert known(rig, host).throttled
        for _ in range(2):
            provider.throttle(host, "vn1", None)
            assert not known(rig, host).throttled
        assert known(rig, host).occupies_cpu
        provider.throttle(host, "vn1", 100)
        assert not known(rig, host).throttled

    def test_only_what_is_in_memory_can_be_throttled(self, rig: Rig) -> None:
        """A suspended instance uses no CPU; one that is not there is an error."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, Throttler)
        with pytest.raises(NotFoundError, match="vn9"):
            provider.throttle(host, "vn9", 5)
        rig.provider.suspend(host, "vn1")
        with pytest.raises(BusyError, match="suspended"):
            provider.throttle(host, "vn1", 5)
