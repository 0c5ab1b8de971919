"""The node half of the WorkloadManager contract, for nodes that stand in the managed file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.drivers.slurm.conf.wanted import Method
from backfill.lab.roots import RELEASES
from tests.contract.workload_nodes import NodeContract
from tests.real.conf_lab import ConfRig, conf_lab


@pytest.fixture(
    scope="module",
    params=[(m, r) for r in RELEASES for m in (Method.CONF, Method.CLOUD)],
    ids=lambda p: f"{p[0]}-{p[1]}",
)
def cluster(request: pytest.FixtureRequest) -> Iterator[ConfRig]:
    method, release = request.param
    with conf_lab(f"slurm-{method}", release=release) as lab:
        yield ConfRig.by(lab, method)


@pytest.mark.real
class TestManagedFile(NodeContract):
    @pytest.fixture
    def rig(self, cluster: ConfRig) -> Iterator[ConfRig]:
        yield cluster
        cluster.reset()
