"""The WorkloadManager contract, held by the Slurm driver on real clusters of several releases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.workload_manager import WorkloadManagerContract
from tests.real.releases import OLDEST_AND_NEWEST
from tests.real.slurm_lab import RealRig, slurm_lab


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-contract", release=request.param) as lab:
        yield RealRig.of(lab)


@pytest.mark.real
class TestSlurmManager(WorkloadManagerContract):
    @pytest.fixture
    def rig(self, cluster: RealRig) -> Iterator[RealRig]:
        yield cluster
        cluster.reset()
