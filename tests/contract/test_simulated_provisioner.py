"""The simulated Provisioner keeps the contract."""

from __future__ import annotations

import pytest

from backfill.drivers.simulated.provisioner import SimulatedProvisioner
from backfill.ports.provider import SeedFile
from tests.contract.provisioner import PEM, ProvisionerContract


class SimulatedRig:
    """Nodes need no life of their own."""

    def __init__(self) -> None:
        self.provisioner = SimulatedProvisioner()

    def start(self, node: str, files: dict[str, SeedFile]) -> None:
        assert self.provisioner.accepts(files[PEM].content)

    def spoil(self, node: str) -> str:
        self.provisioner.drifted[node] = (("limits", "would be written"),)
        return "limits"

    def hang(self, node: str) -> None:
        self.provisioner.silent.add(node)


@pytest.fixture
def rig() -> SimulatedRig:
    return SimulatedRig()


class TestSimulatedProvisioner(ProvisionerContract):
    """See the contract."""
