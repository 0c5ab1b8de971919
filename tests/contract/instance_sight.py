"""Whether guests are what their Salt states come to: what every provider that can look must do."""

from __future__ import annotations

import pytest

from backfill.core.model.readiness import Stated
from backfill.ports.capabilities import StateSeer
from backfill.ports.errors import BusyError
from tests.contract.instance_rig import WAKE, Rig, born
from tests.contract.lacking import lacking


class InstanceSightContract:
    """Inherited by `InstanceProviderContract`, which provides `rig`."""

    def test_a_guest_with_another_list_is_not_as_its_states_say(self, rig: Rig) -> None:
        """Nor one that has none."""
        if WAKE not in rig.abilities:
            lacking(WAKE)
        assert isinstance(rig.provider, StateSeer)
        host = born(rig)
        rig.booted("vn1")
        assert "something else now" in str(rig.provider.differs(host, "vn1", Stated("0" * 64)))

    def test_a_sleeping_guest_cannot_be_seen(self, rig: Rig) -> None:
        """It refuses: that is not the same as all being well."""
        assert isinstance(rig.provider, StateSeer)
        host, stated = born(rig), Stated("0" * 64)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError):
            rig.provider.differs(host, "vn1", stated)
