"""The InstanceProvider contract against real Keystone, Nova, Glance, Placement and Neutron."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.instance_provider import InstancePortContract
from tests.real.cloud_rig import cloud_entered
from tests.real.openstack_rig import OpenStackRig

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def clouds() -> Iterator[Path]:
    with cloud_entered() as file:
        yield file


class TestOpenStackComputeHosts(InstancePortContract):
    @pytest.fixture
    def rig(self, clouds: Path) -> Iterator[OpenStackRig]:
        made = OpenStackRig(clouds)
        yield made
        made.end()
