"""The WorkloadManager contract, held by the simulated slurmctld."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from backfill.core.model.cluster import NodeBase
from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.simulated.slurm.manager import SimulatedSlurm
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.workload import NodeSpec, PilotSpec, WorkloadManager
from tests.contract.workload_manager import WorkloadManagerContract
from tests.contract.workload_pilots import pilot
from tests.contract.workload_rig import EVERYTHING

_FOR_EVER_S = 1e6


class SimulatedRig:
    """Two idle bare-metal nodes; time passes in steps when a test waits."""

    hosts = ("bm1", "bm2")
    abilities = EVERYTHING
    fresh_base = NodeBase.FUTURE

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.world.add_partition("all")
        for host in self.hosts:
            self.world.add_host(host)

    @property
    def manager(self) -> SimulatedSlurm:
        return self.world.slurm

    def until(self, holds: Callable[[], bool]) -> None:
        for _ in range(200):
            if holds():
                return
            self.world.clock.advance(0.1)
        raise AssertionError("it did not come within 20 simulated seconds")

    def submit(
        self,
        node: str,
        *,
        name: str = "job",
        requeue: bool = True,
        hold: bool = False,
        tasks: int = 0,
        cpus: int = 1,
        within: str = "",
    ) -> str:
        wishes: dict[str, object] = {
            "name": name,
            "requeue": requeue,
            "held": hold,
            "held_by_owner": hold,
            "cpus": cpus,
            "required_nodes": (node,),
            "heeds_s": 0.2,
            "within": within,
        }
        if tasks:
            return self.world.submit_array("all", _FOR_EVER_S, tasks, **wishes)  # type: ignore[arg-type]
        return self.world.submit("all", _FOR_EVER_S, **wishes)  # type: ignore[arg-type]

    def pilot(self, slot: int) -> PilotSpec:
        self.world.pool.add(_FOR_EVER_S)
        return pilot(slot, "pilot", "all", "/pilot.sh")

    def finish(self, job_id: str) -> None:
        self.world.finish_job(job_id)

    def ask_for_machines(self, job_id: str, word: str) -> None:
        self.world.owner_comments(job_id, word)

    def comment_as_site(self, job_id: str, text: str) -> None:
        self.world.site_comments(job_id, text)

    def release_as_owner(self, job_id: str) -> None:
        self.world.owner_releases(job_id)

    def register(self, spec: NodeSpec) -> None:
        tag = Tag("sim", spec.name, 1)
        flavour = Flavour(spec.cpus, spec.memory_mb)
        self.world.provider.create(
            InstanceSpec(spec.name, self.hosts[1], tag, flavour, "image", f"{spec.address}/16")
        )

    @contextmanager
    def silent(self, node: str) -> Iterator[None]:
        self.world.cut_node(node)
        yield
        self.world.cut_node(node, connected=True)

    @contextmanager
    def drained_by_admin(self, node: str, reason: str) -> Iterator[None]:
        self.world.admin_drain(node, reason)
        yield
        self.world.admin_drain(node, "")

    @contextmanager
    def cut(self) -> Iterator[WorkloadManager]:
        self.world.stop_slurm()
        yield self.world.slurm
        self.world.start_slurm()


class TestSimulatedSlurm(WorkloadManagerContract):
    @pytest.fixture
    def rig(self) -> SimulatedRig:
        return SimulatedRig()
