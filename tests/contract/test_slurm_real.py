"""The WorkloadManager contract, held by the Slurm driver on real clusters of several releases."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.core.model.cluster import OUR_REASON
from tests.contract.workload_manager import WorkloadManagerContract
from tests.contract.workload_rig import REASON, job, node, spec
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

    def test_a_partition_that_has_lost_its_last_node(self, rig: RealRig) -> None:
        """Slurm says no to each change of its jobs, and makes it: none of these counts as failed."""
        rig.manager.create_node(spec("vn1"))
        rig.register(spec("vn1"))
        rig.until(lambda: node(rig, "vn1").slurmd_start_s > 0)
        script = str(rig.lab.shared / "job.sh")
        mine = rig.user("sbatch", "--parsable", "-H", "-p", "htc", "-o", "/dev/null", "-D", "/tmp", script)
        rig.manager.hold_job(mine)
        rig.manager.pin_job(mine, ("vn1",))
        rig.manager.drain("vn1", REASON)
        rig.manager.delete_node("vn1")
        for _ in range(2):
            rig.manager.unpin_job(mine)
        assert "Reservation=" not in rig.ctl("scontrol", "show", "job", mine)
        rig.manager.tell(mine, f"{OUR_REASON} its machines are gone")
        rig.manager.release_job(mine)
        assert job(rig, mine).reason == "PartitionConfig"
        rig.manager.hold_job(mine)
        assert job(rig, mine).reason == "JobHeldAdmin"
        rig.manager.cancel_job(mine)
