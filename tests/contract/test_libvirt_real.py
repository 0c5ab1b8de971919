"""The InstanceProvider contract against real libvirt and QEMU on the two hosts of a lab."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.lab.cluster import Lab
from tests.contract.instance_provider import InstanceProviderContract
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=HYPERVISORS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with running_lab("libvirt-contract", request.param) as up:
        yield up


class TestRealLibvirt(InstanceProviderContract):
    @pytest.fixture
    def rig(self, lab: Lab) -> Iterator[LibvirtRig]:
        made = LibvirtRig(lab)
        yield made
        made.end()
