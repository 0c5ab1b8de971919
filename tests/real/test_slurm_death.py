"""slurmctld is killed in the middle of each call about a job or a node; repeated, it holds."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import NOWHERE, OUR_REASON, JobState, NodeBase
from backfill.drivers.slurm.driver import SlurmManager
from backfill.lab.roots import RELEASES
from backfill.ports.errors import DriverError
from backfill.ports.workload import WorkloadManager
from tests.contract.workload_rig import REASON, job, node, running
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab, until

pytestmark = [pytest.mark.real, pytest.mark.soak]
SAID = f"{OUR_REASON} paused"
# The tool that acts stops before or after its work until slurmctld is dead.
_TOOL = """#!/bin/sh
case " $* " in *{acts}*)
  if [ {when} = after ]; then {real} "$@"; status=$?; fi
  : > {here}
  until [ -e {go} ]; do sleep 0.02; done
  if [ {when} = after ]; then exit $status; fi;;
esac
exec {real} "$@"
"""


@dataclass
class Case:
    """A call, what it needs before, and how one knows that it has done its work."""

    tool: str
    acts: str  # a word of the command line by which it acts
    call: Callable[[WorkloadManager, str, str], object]  # of a job and the node that it is on
    done: Callable[[RealRig, str, str], bool]
    suspended: bool = False  # the job, before the call


def _state(*states: JobState) -> Callable[[RealRig, str, str], bool]:
    return lambda rig, job_id, host: job(rig, job_id).state in states


def _again(rig: RealRig, job_id: str, host: str) -> bool:
    seen = job(rig, job_id)
    return seen.state is JobState.RUNNING and seen.restarts >= 1


def _gone(rig: RealRig, job_id: str, host: str) -> bool:
    seen = rig.manager.read_jobs([job_id]).get(job_id)
    return seen is None or not (seen.holds_nodes or seen.state is JobState.PENDING)


def _told(rig: RealRig, job_id: str, host: str) -> bool:
    return rig.ctl("squeue", "-h", "-j", job_id, "-O", "admin_comment:64") == SAID


CASES = {
    "suspend": Case("scontrol", "suspend", lambda m, j, n: m.suspend_job(j), _state(JobState.SUSPENDED)),
    "resume": Case("scontrol", "resume", lambda m, j, n: m.resume_job(j), _state(JobState.RUNNING), True),
    "requeue": Case("scontrol", "requeue", lambda m, j, n: m.requeue_job(j), _again),
    "cancel": Case("scancel", " ", lambda m, j, n: m.cancel_job(j), _gone),
    "tell": Case("scontrol", "AdminComment", lambda m, j, n: m.tell(j, SAID), _told),
    "hide": Case(
        "scontrol",
        "NodeAddr",
        lambda m, j, n: m.set_address(n, NOWHERE),
        lambda rig, j, n: node(rig, n).hidden,
    ),
    "drain": Case(
        "scontrol",
        "State=DRAIN",
        lambda m, j, n: m.drain(n, REASON),
        lambda rig, j, n: node(rig, n).drained_by_us,
    ),
    "look": Case("squeue", " ", lambda m, j, n: m.observe(), _state(JobState.RUNNING)),
}


@dataclass
class Trap:
    """Tools of which one waits in the middle of its work."""

    rig: RealRig
    case: Case
    when: str
    home: Path = field(init=False)

    def __post_init__(self) -> None:
        self.home = self.rig.lab.shared / "trap"
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        for tool in ("scontrol", "squeue", "scancel"):
            real = self.rig.lab.tools / tool if self.rig.lab.tools else shutil.which(tool)
            acts = f'"{self.case.acts}"' if tool == self.case.tool else "never"
            path = self.home / tool
            path.write_text(
                _TOOL.format(real=real, acts=acts, when=self.when, here=self.here, go=self.home / "go")
            )
            path.chmod(0o755)

    @property
    def here(self) -> Path:
        return self.home / "here"

    @property
    def manager(self) -> SlurmManager:
        return SlurmManager(replace(commands_of(self.rig.lab, 30.0), bin_dir=self.home))

    def kill(self) -> None:
        """End slurmctld as soon as the tool is there, and let the tool go on."""
        until(self.here.exists)
        self.rig.lab.kill("slurmctld", signal.SIGKILL)
        (self.home / "go").touch()


@pytest.fixture(scope="module", params=[RELEASES[0], RELEASES[-1]])
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-killed", release=request.param) as lab:
        yield RealRig.of(lab)


@pytest.fixture
def rig(cluster: RealRig) -> Iterator[RealRig]:
    address = node(cluster, cluster.hosts[0]).address
    yield cluster
    cluster.manager.set_address(cluster.hosts[0], address)
    cluster.reset()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", CASES)
def test_a_call_that_slurmctld_did_not_survive_is_repeated(rig: RealRig, name: str, when: str) -> None:
    """Whether it had acted or not: the call ends, and the next one brings what was wanted."""
    case, host = CASES[name], rig.hosts[0]
    going = running(rig, host)
    if case.suspended:
        rig.manager.suspend_job(going)
    rig.remember(going)
    trap, ended = Trap(rig, case, when), []

    def call() -> None:
        try:
            case.call(trap.manager, going, host)
            ended.append("well")
        except DriverError as error:
            ended.append(str(error))

    caller = threading.Thread(target=call)
    caller.start()
    try:
        trap.kill()
        caller.join(300)
        assert len(ended) == 1, "the call hangs"
    finally:
        (trap.home / "go").touch()
        rig.lab.start("slurmctld")
    rig.until(lambda: node(rig, rig.hosts[1]).responding)

    def repeated() -> bool:
        try:
            case.call(rig.manager, going, host)
        except DriverError:
            return case.done(rig, going, host)
        return case.done(rig, going, host)

    rig.until(repeated)
    if name not in ("cancel", "requeue"):
        assert job(rig, going).restarts == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_down_and_a_dead_slurmctld(rig: RealRig, when: str) -> None:
    """The node is DOWN in the end and its job in the queue, once, as if nothing had happened."""
    host = rig.hosts[0]
    going = running(rig, host)
    rig.remember(going)
    down = Case("scontrol", "State=DOWN", lambda m, j, n: None, lambda rig, j, n: True)
    trap = Trap(rig, down, when)
    with rig.silent(host):
        caller = threading.Thread(target=lambda: _try(trap.manager, host))
        caller.start()
        try:
            trap.kill()
            caller.join(300)
        finally:
            (trap.home / "go").touch()
            rig.lab.start("slurmctld")

        def fallen() -> bool:
            _try(rig.manager, host)
            return node(rig, host).base is NodeBase.DOWN

        rig.until(fallen)
        rig.until(lambda: job(rig, going).state is JobState.PENDING)
        assert job(rig, going).restarts == 1
    rig.until(lambda: node(rig, host).responding)


def _try(manager: WorkloadManager, host: str) -> None:
    try:
        manager.set_down(host, REASON)
    except DriverError:
        return
