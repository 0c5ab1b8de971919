"""The managed file on real clusters: nothing is lost, whatever happens in the middle."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import backfill
from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.conf.managed import LineState, Method, NodeLine, WantedNodes, parse
from backfill.lab.roots import RELEASES
from backfill.ports.errors import BusyError, DriverError, RefusedError
from tests.contract.workload_rig import REASON, await_state, job, node, running, spec
from tests.real.conf_lab import ConfRig, conf_lab, transactions_of
from tests.real.releases import OLDEST_AND_NEWEST

pytestmark = pytest.mark.real
_ROOT = Path(backfill.__file__).parents[1]
_DIE_AT = """
import os, signal, sys
from backfill.lab.cluster import Lab
from tests.contract.workload_rig import spec
from tests.real.conf_lab import transactions_of
from backfill.drivers.slurm.conf.managed import LineState, NodeLine
def at(step):
    if step == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
line = NodeLine(spec("vn2"), LineState.FUTURE)
transactions_of(Lab.attach(sys.argv[1]), at=at).apply(lambda m: m.with_nodes(line), dry=False)
"""


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def cluster(request: pytest.FixtureRequest) -> Iterator[ConfRig]:
    with conf_lab("slurm-conf", release=request.param) as lab:
        yield ConfRig.by(lab, Method.CONF)


@pytest.fixture
def rig(cluster: ConfRig) -> Iterator[ConfRig]:
    yield cluster
    cluster.reset()


def working(rig: ConfRig) -> str:
    """A job on vn1, which has proven itself."""
    rig.manager.create_node(spec())
    rig.register(spec())
    rig.until(lambda: node(rig, "vn1").responding)
    rig.manager.undrain("vn1")
    rig.manager.nudge("vn1")
    return running(rig, "vn1")


def fewer(rig: ConfRig) -> WantedNodes:
    """A policy file that does not name vn1 any more."""
    return WantedNodes(Method.CONF, (spec("vn3"),), "/bin/true", 60)


def test_the_line_of_a_node_with_a_job_is_never_removed(rig: ConfRig) -> None:
    """Running or suspended, drained or not: refused, and the job goes on."""
    going = working(rig)
    rig.manager.drain("vn1", REASON)
    change = transactions_of(rig.lab)
    before = rig.managed.read_text()
    assert parse(before).node("vn1") == NodeLine(spec(), LineState.UNKNOWN)
    for _ in range(2):
        with pytest.raises(BusyError, match=f"job {going} holds it"):
            change.apply(lambda now: fewer(rig).change(now, change.site()), dry=False)
        rig.manager.suspend_job(going)
    assert rig.managed.read_text() == before
    rig.lab.restart("slurmctld")
    rig.until(lambda: job(rig, going).state is JobState.SUSPENDED)
    rig.manager.resume_job(going)
    assert await_state(rig, going, JobState.RUNNING).restarts == 0


def test_others_hands_on_our_file(rig: ConfRig) -> None:
    """What they wrote stays; nothing new is begun, and what works goes on working."""
    going = working(rig)
    ours = rig.managed.read_text()
    rig.managed.write_text(ours.replace("RealMemory=500", "RealMemory=501"))
    theirs = rig.managed.read_text()
    with pytest.raises(RefusedError, match="somebody else has changed it"):
        rig.manager.create_node(spec("vn4"))
    assert rig.managed.read_text() == theirs
    rig.manager.drain("vn1", REASON)
    assert node(rig, "vn1").drained_by_us
    assert job(rig, going).state is JobState.RUNNING
    rig.manager.undrain("vn1")
    assert not node(rig, "vn1").drained
    rig.manager.cancel_job(going)
    rig.until(lambda: not job(rig, going).holds_nodes)
    rig.manager.delete_node("vn1")
    assert rig.manager.read_nodes(["vn1"]) == {}
    assert rig.managed.read_text() == theirs
    rig.managed.write_text(ours)


def test_a_partition_that_somebody_has_closed_stays_closed(rig: ConfRig) -> None:
    """A reload would open it: until it is open no line is added."""
    change = transactions_of(rig.lab)
    rig.ctl("scontrol", "update", "PartitionName=any", "State=DOWN")
    try:
        with pytest.raises(BusyError, match="partition any is DOWN, and would be UP again"):
            change.apply(lambda now: now.with_nodes(NodeLine(spec(), LineState.FUTURE)), dry=False)
        assert "State=DOWN" in rig.ctl("scontrol", "show", "partition", "any")
    finally:
        rig.ctl("scontrol", "update", "PartitionName=any", "State=UP")
    change.apply(lambda now: now.with_nodes(NodeLine(spec(), LineState.FUTURE)), dry=False)
    assert rig.lines() >= {"vn1"}


@pytest.mark.parametrize("step", ["backup", "note", "write", "reload", "look", "end"])
def test_our_process_is_killed_in_the_middle(rig: ConfRig, step: str) -> None:
    """The file is the old or the new one; the next start makes an end, and jobs notice nothing."""
    going = running(rig, rig.hosts[0])
    change = transactions_of(rig.lab)
    change.apply(lambda now: now.with_nodes(NodeLine(spec(), LineState.FUTURE)), dry=False)
    change.apply(lambda now: now.only_nodes((NodeLine(spec(), LineState.FUTURE),)), dry=False)
    killed = subprocess.run([sys.executable, "-c", _DIE_AT, rig.lab.spec.name, step], cwd=_ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    written = step in ("reload", "look", "end")
    assert rig.lines() == ({"vn1", "vn2"} if written else {"vn1"})
    change.recover()
    assert rig.lines() == ({"vn1", "vn2"} if written else {"vn1"})
    known = set(change.slurm.look().nodes)
    assert known == {*rig.hosts, *rig.lines()}
    assert job(rig, going).restarts == 0
    assert await_state(rig, going, JobState.RUNNING).active


def test_a_dry_start_hears_what_slurmctld_would_die_of(rig: ConfRig) -> None:
    """A mistake that the site has made since the last start: refused in slurmctld's own words."""
    conf = rig.lab.slurm_conf
    good, before = conf.read_text(), rig.managed.read_text()
    conf.write_text(good.replace("KillWait=3\n", "KillWait=3\nNoSuchKey=1\n"))
    try:
        change = transactions_of(rig.lab)
        with pytest.raises(RefusedError, match=r"slurmctld does not take it: .*NoSuchKey"):
            change.apply(lambda now: now.with_nodes(NodeLine(spec("vn5"), LineState.FUTURE)))
    finally:
        conf.write_text(good)
    assert rig.managed.read_text() == before
    change.apply(lambda now: now.with_nodes(NodeLine(spec("vn5"), LineState.FUTURE)))
    assert "vn5" in rig.lines()


def test_a_hundred_at_once_are_one_reload(rig: ConfRig) -> None:
    """Wanted by many threads; then taken away again. Newer releases are never restarted for it."""
    started = rig.lab.status().machines["ctl"].services["slurmctld"]
    names = [f"vn{i}" for i in range(101, 201)]
    failed: list[DriverError] = []

    def create(name: str) -> None:
        try:
            rig.manager.create_node(spec(name))
        except DriverError as error:
            failed.append(error)

    threads = [threading.Thread(target=create, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for name in names:  # an old slurmctld that is restarted between two batches forgets the drain
        rig.manager.create_node(spec(name))
    seen = rig.manager.observe().nodes
    assert all(seen[name].drained_by_us for name in names)
    for name in names:
        rig.manager.delete_node(name)
    assert not set(names) & set(rig.manager.observe().nodes)
    change = transactions_of(rig.lab)
    change.apply(lambda now: fewer(rig).change(now, change.site()), dry=False)
    assert not set(names) & set(change.slurm.look().nodes)
    if rig.lab.spec.slurm_version != RELEASES[0]:
        assert rig.lab.status().machines["ctl"].services["slurmctld"] == started
