"""The node half of the WorkloadManager contract, for nodes that stand in the managed file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.drivers.slurm.conf.wanted import Method
from tests.contract.workload_nodes import NodeContract
from tests.real.conf_lab import ConfRig, conf_lab


@pytest.fixture(scope="module", params=[Method.CONF, Method.CLOUD])
def cluster(request: pytest.FixtureRequest) -> Iterator[ConfRig]:
    with conf_lab(f"slurm-{request.param}") as lab:
        yield ConfRig.by(lab, request.param)


@pytest.mark.real
class TestManagedFile(NodeContract):
    @pytest.fixture
    def rig(self, cluster: ConfRig) -> Iterator[ConfRig]:
        yield cluster
        cluster.reset()
