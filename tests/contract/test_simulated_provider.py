"""The InstanceProvider contract, held by the simulated hypervisors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from backfill.core.model.fleet import InstanceSpec, NumaNode, Tag
from backfill.drivers.simulated.hypervisor.provider import SimulatedProvider
from backfill.drivers.simulated.world import SimulatedWorld
from tests.contract.instance_fence import InstanceFenceContract
from tests.contract.instance_numa import InstanceNumaContract
from tests.contract.instance_provider import CLUSTER, EVERYTHING, SMALL, InstanceProviderContract
from tests.contract.instance_rig import NETWORK


class SimulatedRig:
    """Two simulated hosts; time passes in steps when a test waits."""

    image = "small"
    abilities = EVERYTHING

    def __init__(self) -> None:
        self.world = SimulatedWorld(cluster=CLUSTER)
        for host in ("hv1", "hv2"):
            self.world.add_host(host, node=False)
            self.world.hosts[host].networks = (NETWORK,)
        self.world.provider.images = frozenset({self.image})

    @property
    def provider(self) -> SimulatedProvider:
        return self.world.provider

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(100):
            if holds():
                return
            self.world.clock.advance(0.5)
        raise AssertionError("it did not come within 50 simulated seconds")

    def booted(self, name: str) -> None:
        self.until(lambda: self.world.instance(name).machine.booted)

    def use_memory(self, host: str, name: str, memory_mb: int) -> None:
        """Simulated guests have used all that they have."""

    def start_job(self, host: str, name: str, job: str) -> None:
        self.world._machines.launch(job, 0, [name], needed_s=1e6)

    def progress(self, name: str, job: str) -> int:
        return sum(count.job == job for count in self.world._machines.tally(1.0))

    @contextmanager
    def unreachable(self, host: str) -> Iterator[None]:
        self.world.cut_host(host)
        yield
        self.world.join_host(host)

    @contextmanager
    def hidden(self, host: str, name: str) -> Iterator[str]:
        instance = self.world.hosts[host].instances[name]
        instance.unreadable = "cannot use /simulated/memory.save: Permission denied"
        yield "/simulated/memory.save"
        instance.unreadable = ""

    @contextmanager
    def stranger(self, host: str, name: str) -> Iterator[None]:
        tag = Tag("other", name, 1)
        self.world.add_stranger(InstanceSpec(name, host, tag, SMALL, "own", "192.0.2.1/24"))
        yield
        del self.world.hosts[host].instances[name]


class TestSimulatedProvider(InstanceFenceContract, InstanceProviderContract):
    @pytest.fixture
    def rig(self) -> SimulatedRig:
        return SimulatedRig()


class TestBoundSimulatedProvider(InstanceNumaContract):
    @pytest.fixture
    def rig(self) -> SimulatedRig:
        made = SimulatedRig()
        for number, host in enumerate(made.world.hosts.values()):
            # Other numbers on the other host: nothing of the one may be taken for the other's.
            host.numa = (NumaNode(2 * number, 1, 1024), NumaNode(2 * number + 1, 1, 1024))
        return made
