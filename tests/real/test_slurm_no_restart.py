"""Two hundred nodes come and go while slurmctld stays the same process and a job goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.core.model.cluster import JobState
from backfill.lab.cluster import Lab
from backfill.lab.roots import SUITES
from tests.contract.workload_rig import job, running, spec
from tests.real.slurm_lab import RealRig, slurm_lab

pytestmark = [pytest.mark.real, pytest.mark.gate]
ROUNDS, NODES = 5, 40


@pytest.fixture(scope="module", params=SUITES)
def rig(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-many", release=request.param) as lab:
        yield RealRig.of(lab)


def identity(lab: Lab) -> tuple[int, str]:
    """The controller's pid in its machine and when that process started, in clock ticks."""
    pid = lab.status().machines["ctl"].services["slurmctld"]
    stat = lab.run("ctl", ["cat", f"/proc/{pid}/stat"], check=True).stdout
    return pid, stat.rpartition(")")[2].split()[19]


def test_two_hundred_adds_and_removes_never_restart_slurmctld(rig: RealRig) -> None:
    """Each node is seen drained and then gone; process, start time and the running job stay."""
    going = running(rig, rig.hosts[0])
    before = identity(rig.lab)
    manager = rig.manager
    added = 0
    with ThreadPoolExecutor(4) as pool:
        for _ in range(ROUNDS):
            names = [f"vn{i}" for i in range(1, NODES + 1)]
            list(pool.map(manager.create_node, map(spec, names)))
            seen = manager.observe().nodes
            assert all(seen[name].drained_by_us for name in names)
            added += len(names)
            list(pool.map(manager.delete_node, names))
            assert set(manager.observe().nodes) == set(rig.hosts)
    assert added == 200
    assert identity(rig.lab) == before
    log = rig.lab.dir / "machines/ctl/log/slurm/slurmctld.log"
    assert log.read_text().count("started on cluster") == 1
    assert job(rig, going).state is JobState.RUNNING
    assert job(rig, going).restarts == 0
