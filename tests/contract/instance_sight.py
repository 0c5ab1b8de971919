"""Whether guests are what their Salt states come to: what every provider that can look must do."""

from __future__ import annotations

import pytest

from backfill.abilities import StateSeer
from backfill.core.readiness import Stated
from backfill.ports import BusyError
from tests.contract.instance_rig import WAKE, Rig, born


class InstanceSightContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_a_guest_with_another_list_is_not_as_its_states_say(self, rig: Rig) -> None:
        """Nor one that has none; a sleeping guest cannot be seen."""
        assert isinstance(rig.provider, StateSeer)
        host, stated = born(rig), Stated("0" * 64)
        if WAKE in rig.abilities:
            rig.booted("vn1")
            assert "something else now" in rig.provider.differs(host, "vn1", stated)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError):
            rig.provider.differs(host, "vn1", stated)
