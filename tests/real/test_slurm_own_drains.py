"""Whether slurmctld drained a node by itself, for a fault, or somebody did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.drivers.slurm.reading.reader import SlurmReader
from tests.contract.workload_rig import node, running
from tests.real.releases import OLDEST_AND_NEWEST
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def rig(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    """A lab where no node gets over the end of a job: slurmctld drains it then."""
    with slurm_lab("slurm-own", release=request.param, extra_conf=("Epilog=/bin/false",)) as lab:
        yield RealRig.of(lab)


def test_a_drain_of_slurmctlds_own_is_told_from_an_admins(rig: RealRig) -> None:
    """Both name their user; SlurmUser's is Slurm itself, also for a reader that asks for one node only."""
    failed, looked_at = rig.hosts
    rig.finish(running(rig, failed))
    rig.until(lambda: node(rig, failed).drained)
    with rig.drained_by_admin(looked_at, "disk=broken, see ticket 7"):
        seen = rig.manager.observe().nodes
        fresh = SlurmReader(commands_of(rig.lab)).read_nodes([failed, looked_at])
    assert seen[failed].reason == "Epilog error"
    for nodes in (seen, fresh):
        assert nodes[failed].drained_by_others
        assert not nodes[failed].drained_by_people
        assert nodes[looked_at].reason_by == "root"
        assert nodes[looked_at].drained_by_people
