"""slurmctld dies at the worst moments of a change of the managed file or of a call."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.conf.managed import LineState, Method, NodeLine
from backfill.drivers.slurm.conf.transaction import ApplyOutcome, RolledBackError, Transactions
from backfill.lab.roots import RELEASES
from backfill.ports.errors import DriverError
from backfill.ports.workload import WorkloadManager
from tests.contract.workload_rig import REASON, await_state, node, running, spec
from tests.real.conf_lab import ConfRig, conf_lab, transactions_of
from tests.real.releases import OLDEST_AND_NEWEST

pytestmark = [pytest.mark.real, pytest.mark.gate]


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def cluster(request: pytest.FixtureRequest) -> Iterator[ConfRig]:
    with conf_lab("slurm-death", release=request.param) as lab:
        yield ConfRig.by(lab, Method.CONF)


@pytest.fixture
def rig(cluster: ConfRig) -> Iterator[ConfRig]:
    yield cluster
    cluster.reset()


def dying_at_the_reload(rig: ConfRig) -> Transactions:
    """Transactions whose first reload finds slurmctld just killed."""
    alive = ["slurmctld"]

    def at(step: str) -> None:
        if step == "reload" and alive:
            rig.lab.kill(alive.pop(), signal.SIGKILL)

    # The silence of the dead is waited for.
    return transactions_of(rig.lab, timeout_s=4, at=at)


def nothing_was_lost(rig: ConfRig, job_id: str) -> None:
    rig.until(lambda: node(rig, rig.hosts[0]).responding)
    assert await_state(rig, job_id, JobState.RUNNING).restarts == 0


def test_slurmctld_dies_at_a_reload(rig: ConfRig) -> None:
    """The old file comes back, slurmctld is started again, and no job is lost."""
    going = running(rig, rig.hosts[0])
    before = rig.managed.read_text()
    rig.remember(going)
    with pytest.raises(RolledBackError, match="taken back, nothing is lost"):
        # No node comes or goes, so that no release is restarted for it.
        dying_at_the_reload(rig).apply(lambda now: now.with_section("test", (("KillWait", "7"),)), dry=False)
    assert rig.managed.read_text() == before
    nothing_was_lost(rig, going)


def test_slurmctld_dies_before_a_node_is_added(rig: ConfRig) -> None:
    """Where it is restarted for that anyway, the change succeeds; elsewhere it is taken back."""
    going = running(rig, rig.hosts[0])
    before = rig.managed.read_text()
    assert "vn7" not in rig.lines()
    rig.remember(going)
    change = dying_at_the_reload(rig)

    def add() -> ApplyOutcome:
        line = NodeLine(spec("vn7"), LineState.FUTURE)
        return change.apply(lambda now: now.with_nodes(line), dry=False)

    if rig.lab.spec.slurm_version == RELEASES[0]:
        assert add().reloaded == "restart"
        assert "vn7" in rig.lines()
        assert "vn7" in change.slurm.look().nodes
        nothing_was_lost(rig, going)
        change.rollback(dry=False)
    else:
        with pytest.raises(RolledBackError, match="taken back, nothing is lost"):
            add()
    assert rig.managed.read_text() == before
    nothing_was_lost(rig, going)


def _register(rig: ConfRig) -> None:
    rig.register(spec())
    rig.until(lambda: node(rig, "vn1").responding)


_CALLS: dict[str, Callable[[WorkloadManager], object]] = {
    "create": lambda m: m.create_node(spec()),
    "drain": lambda m: m.drain("vn1", REASON),
    "undrain": lambda m: m.undrain("vn1"),
    "delete": lambda m: m.delete_node("vn1"),
}


@pytest.mark.parametrize("name", _CALLS)
def test_slurmctld_dies_in_the_middle_of_a_call(rig: ConfRig, name: str) -> None:
    """The call ends, well or with an error; repeated afterwards, it does what it should."""
    _prepare(rig, name)
    ended: list[DriverError | None] = []

    def call() -> None:
        try:
            _CALLS[name](rig.manager)
            ended.append(None)
        except DriverError as error:
            ended.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    rig.lab.kill("slurmctld", signal.SIGKILL)
    caller.join(600)
    assert len(ended) == 1
    _revive(rig)
    if name in ("drain", "undrain"):
        rig.until(lambda: node(rig, "vn1").responding)
    _CALLS[name](rig.manager)
    left = rig.manager.read_nodes(["vn1"])
    if name == "delete":
        assert left == {}
    else:
        assert left["vn1"].drained is (name != "undrain")


def _prepare(rig: ConfRig, name: str) -> None:
    """Bring vn1 to where the call finds something to do, and have slurmctld write that down."""
    if name == "create":
        return
    rig.manager.create_node(spec())
    _register(rig)
    if name in ("drain", "undrain"):
        rig.manager.undrain("vn1")
    if name == "undrain":
        rig.manager.drain("vn1", REASON)
    rig.remember_node("vn1")


def _revive(rig: ConfRig) -> None:
    """Start slurmctld again, if a rollback has not done so already."""
    if not rig.lab.status().machines["ctl"].services["slurmctld"]:
        rig.lab.start("slurmctld")
    rig.until(lambda: node(rig, rig.hosts[0]).responding)
    transactions_of(rig.lab).recover()
