"""The WorkloadManager contract, held by the Slurm driver on real clusters of three releases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.lab.roots import RELEASES
from tests.contract.workload_manager import WorkloadManagerContract
from tests.real.slurm_lab import RealRig, slurm_lab


@pytest.fixture(scope="module", params=RELEASES)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-contract", release=request.param) as lab:
        yield RealRig.of(lab)


@pytest.mark.real
class TestSlurmManager(WorkloadManagerContract):
    @pytest.fixture
    def rig(self, cluster: RealRig) -> Iterator[RealRig]:
        yield cluster
        cluster.reset()
