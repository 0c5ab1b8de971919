"""The daemon's threads: what is urgent never waits for what takes long."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import pytest

from backfill.core.model.actions import (
    DeleteInstance,
    DrainNode,
    DriverAction,
    PauseInstance,
    SuspendInstance,
    ThawInstance,
    UndrainNode,
)
from backfill.core.model.lifecycle import HeldJob, JobPatience
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.engine.looking import Outside
from backfill.engine.messages import AddressNews, CallResult, ClusterPicture, Message, ReadFailed
from backfill.engine.workers import Workers
from backfill.ports.workload import NodeSpec
from tests.unit.simulated_cluster import busy, cluster

_PATIENCE_S = 30.0


class SlowDisk:
    """A provider whose suspends last until `written`; it answers everything else at once."""

    def __init__(self) -> None:
        self.written = threading.Event()
        self.begun: SimpleQueue[str] = SimpleQueue()

    def suspend(self, host: str, name: str) -> float:
        self.begun.put(name)
        assert self.written.wait(_PATIENCE_S)
        return 0.0

    def pause(self, host: str, name: str) -> None:
        """Done."""

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        """Done."""

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        """Done."""

    def read(self, host: str, name: str) -> None:
        """There is nothing to see."""


@pytest.mark.parametrize(
    "quick",
    [
        PauseInstance(subject="vn9", generation=1, reason="its host was given to job 7", host="bm1"),
        DeleteInstance(subject="vn9", generation=1, reason="the ladder ends with requeue", host="bm1"),
        ThawInstance(subject="vn9", generation=1, reason="its host is free again", host="bm1", held=()),
        DrainNode(subject="vn9", generation=1, reason="backfill: its host was given to job 7"),
        UndrainNode(subject="vn9", generation=1, reason="it has proven itself again"),
    ],
    ids=lambda action: type(action).__name__,
)
def test_nothing_short_waits_for_memories_on_their_way_to_disk(quick: DriverAction) -> None:
    """However many are being written, and others wait for their turn: a job waits for its host."""
    disk: Any = SlowDisk()
    inbox: SimpleQueue[Message] = SimpleQueue()
    sim = SimulatedWorld()
    sim.slurm.create_node(NodeSpec("vn9", "10.77.1.9", 1, 256, ()))
    workers = Workers(Outside(sim.slurm, {"bm1": disk}, sim.clock), inbox, threads=2)
    try:
        for i in range(5):
            workers.start(
                SuspendInstance(subject=f"vn{i}", generation=1, reason="it stood still for long", host="bm1")
            )
        assert {disk.begun.get(timeout=_PATIENCE_S) for _ in range(2)} == {"vn0", "vn1"}
        workers.start(quick)
        result = inbox.get(timeout=_PATIENCE_S)
        assert isinstance(result, CallResult)
        assert result.action is quick
        assert result.problem == ""
    finally:
        disk.written.set()
        workers.close()


class HangingCloud(SlowDisk):
    """A provider that answers nothing until `written`, whatever it is asked."""

    def _hang(self, host: str, name: str = "") -> None:
        self.begun.put(name)
        assert self.written.wait(_PATIENCE_S)

    pause = read = observe = _hang


def test_a_provider_that_hangs_holds_up_no_other_and_not_slurm() -> None:
    """It may fill all its threads with readings, evictions and the rest; others have their own."""
    cloud: Any = HangingCloud()
    disk: Any = SlowDisk()
    disk.written.set()
    inbox: SimpleQueue[Message] = SimpleQueue()
    sim = SimulatedWorld()
    hosts = [f"c{i}" for i in range(3)]
    ports = {**dict.fromkeys(hosts, cloud), "bm1": disk}
    workers = Workers(Outside(sim.slurm, ports, sim.clock), inbox, threads=2)
    try:
        for host in hosts:
            workers.observe(host)
            workers.start(
                PauseInstance(subject=f"p{host}", generation=1, reason="its project wants it back", host=host)
            )
            workers.start(
                SuspendInstance(subject=f"s{host}", generation=1, reason="it stood still for long", host=host)
            )
        for _ in range(6):  # two threads each
            cloud.begun.get(timeout=_PATIENCE_S)
        workers.start(
            SuspendInstance(subject="vn1", generation=1, reason="it stood still for long", host="bm1")
        )
        workers.start(
            PauseInstance(subject="vn2", generation=1, reason="its host was given to job 7", host="bm1")
        )
        workers.observe("slurm")
        seen = [inbox.get(timeout=_PATIENCE_S) for _ in range(3)]
        assert {r.action.subject for r in seen if isinstance(r, CallResult)} == {"vn1", "vn2"}
        assert any(isinstance(r, ClusterPicture) for r in seen)
    finally:
        cloud.written.set()
        workers.close()


def test_where_no_thread_can_be_started_it_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller, who is the daemon's own thread, is never hit; with one thread, all is done one by one."""
    sim, inbox = SimulatedWorld(), SimpleQueue[Message]()
    disk: Any = SlowDisk()
    workers = Workers(Outside(sim.slurm, {"bm1": disk}, sim.clock), inbox, threads=4)
    pause = PauseInstance(subject="vn1", generation=1, reason="its host was given to job 7", host="bm1")
    start, left = threading.Thread.start, [0]

    def scarce(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    try:
        workers.start(pause)
        failed = inbox.get(timeout=_PATIENCE_S)
        assert isinstance(failed, CallResult)
        assert "no thread can be started" in failed.problem
        assert failed.retry
        workers.observe("slurm")
        assert not workers.look_up(("bm1",))
        assert inbox.empty()
        left[0] = 2  # one of Slurm's, and one for evictions
        workers.observe("slurm")
        assert isinstance(inbox.get(timeout=_PATIENCE_S), ClusterPicture)
        for _ in range(20):
            workers.start(pause)
        done = [inbox.get(timeout=_PATIENCE_S) for _ in range(20)]
        assert [r.problem for r in done if isinstance(r, CallResult)] == [""] * 20
    finally:
        workers.close()


class BrokenResolver:
    """A manager whose first look-up breaks in a way that no driver should; the next one is well."""

    def __init__(self) -> None:
        self.answers: list[Exception | dict[str, str]] = [
            ValueError("a defect"),
            {"bm1": "it is now 10.0.0.9"},
        ]

    def refresh_addresses(self, names: Sequence[str]) -> dict[str, str]:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_defect_in_a_look_up_is_logged_and_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing waits for it, so nobody would miss it: the log has to say so."""
    manager: Any = BrokenResolver()
    inbox: SimpleQueue[Message] = SimpleQueue()
    workers = Workers(Outside(manager, {}, SimulatedWorld().clock), inbox, threads=2)
    try:
        deadline_s = time.monotonic() + _PATIENCE_S
        while len(manager.answers) and time.monotonic() < deadline_s:
            workers.look_up(("bm1",))  # refused while the other one is under way
        assert isinstance(inbox.get(timeout=_PATIENCE_S), AddressNews)
    finally:
        workers.close()
    assert "addresses failed in an unforeseen way" in caplog.text


class ForbiddenDisk(SlowDisk):
    """A provider that may not enter a folder, and did not expect that."""

    def _forbidden(self, host: str, name: str = "") -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/srv/shared/vn1/memory.save")

    pause = observe = _forbidden


def test_an_error_of_the_system_is_told_with_its_path() -> None:
    """It is no "defect in the driver": the file is named, and what to do about it."""
    inbox: SimpleQueue[Message] = SimpleQueue()
    sim = SimulatedWorld()
    disk: Any = ForbiddenDisk()
    workers = Workers(Outside(sim.slurm, {"bm1": disk}, sim.clock), inbox, threads=2)
    try:
        workers.observe("bm1")
        read = inbox.get(timeout=_PATIENCE_S)
        workers.start(
            PauseInstance(subject="vn1", generation=1, reason="its host was given to job 7", host="bm1")
        )
        done = inbox.get(timeout=_PATIENCE_S)
    finally:
        workers.close()
    assert isinstance(read, ReadFailed)
    assert isinstance(done, CallResult)
    assert done.retry
    for problem in (read.problem, done.problem):
        assert "/srv/shared/vn1/memory.save: Permission denied" in problem
        assert "defect" not in problem
        assert "run this as root" in problem


class Doors(SlowDisk):
    """A provider that notes how its guests are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.shut: list[bool] = []

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        self.shut.append(shut)


@pytest.mark.parametrize("shut", [False, True])
def test_only_work_whose_patience_ends_goes_on_behind_a_shut_door(shut: bool) -> None:
    """Any other loses no packet: there is nothing in its guest that may have to end unheard."""
    provider: Any = Doors()
    inbox: SimpleQueue[Message] = SimpleQueue()
    sim = cluster()
    job = busy(sim)
    workers = Workers(Outside(sim.slurm, {"bm1": provider}, sim.clock), inbox, threads=1)
    try:
        held = HeldJob(job, 0, patience=JobPatience(sim.now_s, 60.0) if shut else None)
        workers.start(
            ThawInstance(
                subject="v1", generation=1, reason="its host is free again", host="bm1", held=(held,)
            )
        )
        result = inbox.get(timeout=_PATIENCE_S)
        assert isinstance(result, CallResult)
        assert result.problem == ""
        assert provider.shut == [shut]
    finally:
        workers.close()
