"""The WorkloadManager contract, held by the Slurm driver on a real cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.workload_manager import WorkloadManagerContract
from tests.real.slurm_lab import RealRig, slurm_lab


@pytest.fixture(scope="module")
def cluster() -> Iterator[RealRig]:
    with slurm_lab("slurm-contract") as lab:
        yield RealRig.of(lab)


@pytest.mark.real
class TestSlurmManager(WorkloadManagerContract):
    @pytest.fixture
    def rig(self, cluster: RealRig) -> Iterator[RealRig]:
        yield cluster
        cluster.reset()
