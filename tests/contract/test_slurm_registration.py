"""The node half of the WorkloadManager contract, for nodes that stand in the managed file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.drivers.slurm.conf.managed import Method
from backfill.lab.roots import RELEASES
from tests.contract.workload_nodes import NodeContract
from tests.real.conf_lab import ConfRig, conf_lab

# The way that most will choose: `make test` has it on the oldest release, the gate on the newest as
# well; `make soak` has all.
_MARKS: dict[tuple[Method, str], tuple[pytest.MarkDecorator, ...]] = {
    (Method.CONF, RELEASES[0]): (),
    (Method.CONF, RELEASES[-1]): (pytest.mark.gate,),
}
_ALL = [(method, release) for release in RELEASES for method in (Method.CONF, Method.CLOUD)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(pair, marks=_MARKS.get(pair, (pytest.mark.soak,)), id="-".join(pair)) for pair in _ALL
    ],
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
