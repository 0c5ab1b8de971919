"""Nodes that come, or go, at the same time do so by one command, and each gets its own answer."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import pytest

from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.registration import ROOM_NODE, UNPROVEN, Dynamic, Together
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError
from backfill.ports.workload import NodeSpec

COUNT = 20


def spec(number: int, cpus: int = 2) -> NodeSpec:
    return NodeSpec(f"vn{number}", f"10.77.1.{number}", cpus, 500, ("backfill",))


class Table:
    """Slurm's table of nodes as far as making some goes; `room` of them fit, `gate` holds it up."""

    def __init__(self, room: int = 1000) -> None:
        self.nodes: dict[str, Node] = {}
        self.room = room
        self.made: list[list[str]] = []
        self.removed: list[list[str]] = []
        self.jobs: dict[str, str] = {}  # by node
        self.stuck = ""  # the node whose removal Slurm refuses
        self.drained: list[str] = []
        self.downed: list[str] = []
        self.dead = False
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)

    def raw_node(self, name: str) -> Node | None:
        return self.nodes.get(name)

    def raw_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        self.asked.release()
        self.gate.wait()
        if self.dead:
            raise UnreachableError("slurmctld", "no answer")
        return {name: self.nodes[name] for name in names if name in self.nodes}

    def scontrol(self, subject: str, *argv: str) -> None:
        values = dict(word.split("=", 1) for word in argv[1:])
        if argv[0] == "update":
            assert values["State"] == "DOWN"
            self.downed += parse_hostlist(values["NodeName"])
            return
        if argv[0] == "delete":
            self.delete(list(parse_hostlist(values["NodeName"])))
            return
        names, addresses = (values[key].split(",") for key in ("NodeName", "NodeAddr"))
        self.made.append(names)
        for name, address in zip(names, addresses, strict=True):
            if len(self.nodes) == self.room:
                raise RefusedError(subject, "Maximum node count exceeded")
            self.nodes[name] = Node(
                name,
                NodeBase.FUTURE,
                frozenset({"DYNAMIC_NORM"}),
                address=address,
                cpus=int(values["CPUs"]),
                memory_mb=int(values["RealMemory"]),
                features=tuple(values["Feature"].split(",")),
            )

    def set_drain(self, name: str, reason: str) -> None:
        for one in parse_hostlist(name):
            self.drained.append(one)
            drained = frozenset({"DRAIN", *self.nodes[one].flags})
            self.nodes[one] = replace(self.nodes[one], flags=drained, reason=reason)

    def delete(self, names: list[str]) -> None:
        """As slurmctld: those that can go are gone, and then it complains."""
        self.removed.append(names)
        for name in names:
            if name not in self.jobs and name != self.stuck:
                self.nodes.pop(name, None)
        left = [name for name in names if name in self.nodes]
        if left:
            raise BusyError(",".join(left), "Requested nodes are busy")

    def busy(self, names: Sequence[str]) -> dict[str, BusyError]:
        return {n: BusyError(n, f"job {self.jobs[n]} holds it") for n in names if n in self.jobs}


def create(way: Dynamic, table: Table, wanted: Sequence[NodeSpec]) -> list[DriverError | None]:
    """Want all of them at once."""
    calls = [partial(way.create, table, each) for each in wanted]
    return at_once(table, calls, lambda: len(way._together._waiting))


def delete(way: Dynamic, table: Table, names: Sequence[str]) -> list[DriverError | None]:
    """Want all of them gone at once."""
    calls = [partial(way.delete, table, name) for name in names]
    return at_once(table, calls, lambda: len(way._leaving._waiting))


def at_once(
    table: Table, calls: Sequence[Callable[[], None]], waiting: Callable[[], int]
) -> list[DriverError | None]:
    """One thread is let in, and the others come while it works; how each of them ended."""

    def end_of(call: Callable[[], None]) -> DriverError | None:
        try:
            call()
        except DriverError as error:
            return error
        return None

    while table.asked.acquire(blocking=False):
        pass
    table.gate.clear()
    with ThreadPoolExecutor(len(calls)) as pool:
        first = pool.submit(end_of, calls[0])
        table.asked.acquire()
        rest = [pool.submit(end_of, call) for call in calls[1:]]
        while waiting() < len(rest):
            threading.Event().wait(0.001)
        table.gate.set()
        return [ended.result() for ended in (first, *rest)]


def test_many_at_once_are_one_command_and_one_drain() -> None:
    """But for the first, which nobody could wait for; all are there, drained by us."""
    table = Table()
    wanted = [spec(number) for number in range(1, COUNT + 1)]
    assert create(Dynamic(), table, wanted) == [None] * COUNT
    assert [len(names) for names in table.made] == [1, COUNT - 1]
    assert {node.name: node.address for node in table.nodes.values()} == {
        each.name: each.address for each in wanted
    }
    assert all(node.drained and node.reason == UNPROVEN for node in table.nodes.values())
    assert sorted(table.drained) == sorted(table.nodes)


def test_nodes_of_different_shapes_are_not_mixed() -> None:
    """One command for each shape."""
    table = Table()
    wanted = [spec(1), spec(2, cpus=4), spec(3), spec(4, cpus=4)]
    assert create(Dynamic(), table, wanted) == [None] * 4
    assert sorted(table.made) == [["vn1"], ["vn2", "vn4"], ["vn3"]]
    assert table.nodes["vn4"].cpus == 4


def test_where_not_all_fit_each_is_told_for_itself() -> None:
    """Slurm stops in the middle: what it made is ours, and only the rest is refused."""
    table = Table(room=3)
    ended = create(Dynamic(), table, [spec(number) for number in range(1, 6)])
    refused = [error for error in ended if error is not None]
    assert len(refused) == 2
    assert all("Maximum node count" in str(error) for error in refused)
    assert len(table.nodes) == 3
    assert all(node.drained for node in table.nodes.values())


def test_silence_is_told_to_all_and_asked_once() -> None:
    """Nobody tries one by one against a controller that does not answer."""
    table = Table()
    table.dead = True
    ended = create(Dynamic(), table, [spec(1), spec(2), spec(3)])
    assert all(isinstance(error, UnreachableError) for error in ended)
    assert table.made == []


def test_what_breaks_off_is_no_success_for_those_who_wait() -> None:
    """As with a full disk: whoever did it has the error, the others are told to ask again."""
    together: Together[str] = Together()
    asked, goes_on = threading.Event(), threading.Event()

    def work(wishes: Sequence[str]) -> dict[int, DriverError | None]:
        asked.set()
        goes_on.wait(60)
        if "vn1" in wishes:
            return {}
        raise OSError(errno.ENOSPC, "No space left on device")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(together.want, "vn1", work)
        assert asked.wait(60)
        rest = [pool.submit(together.want, name, work) for name in ("vn2", "vn3", "vn4")]
        while len(together._waiting) < len(rest):
            threading.Event().wait(0.001)
        goes_on.set()
        errors = [each.exception() for each in rest]
    assert first.exception() is None
    assert sorted(type(error).__name__ for error in errors) == ["DriverError", "DriverError", "OSError"]
    for error in errors:
        assert "No space left on device" in str(error)
        assert getattr(error, "retry", True)


@pytest.mark.parametrize("again", [1, 2])
def test_what_is_there_already_costs_no_command(again: int) -> None:
    """Creating twice is creating once."""
    table, way = Table(), Dynamic()
    for _ in range(1 + again):
        way.create(table, spec(1))
    assert table.made == [["vn1"]]
    assert table.drained == ["vn1"]


def full(count: int) -> tuple[Dynamic, Table, list[str]]:
    """A table with so many nodes of ours."""
    table, way = Table(), Dynamic()
    for number in range(1, count + 1):
        way.create(table, spec(number))
    return way, table, list(table.nodes)


def test_many_go_by_one_command() -> None:
    """But for the first, which nobody could wait for; going twice is going once."""
    way, table, names = full(COUNT)
    assert delete(way, table, [*names, "vn1", "vn99"]) == [None] * (COUNT + 2)
    assert table.nodes == {}
    assert [len(batch) for batch in table.removed] == [1, COUNT - 1]
    way.delete(table, "vn1")
    assert len(table.removed) == 2


def test_a_node_with_a_job_or_of_slurm_conf_does_not_keep_the_others() -> None:
    """Slurm is not even asked to remove them."""
    way, table, names = full(5)
    table.jobs["vn3"] = "17"
    table.nodes["vn5"] = replace(table.nodes["vn5"], flags=frozenset())
    ended = delete(way, table, names)
    assert [str(error) for error in ended if error is not None] == [
        "vn3: job 17 holds it",
        "vn5: it is a node of slurm.conf, not one that was added",
    ]
    assert set(table.nodes) == {"vn3", "vn5"}
    assert [name for batch in table.removed for name in batch] == ["vn1", "vn2", "vn4"]


def test_what_slurm_keeps_of_many_is_asked_for_by_itself() -> None:
    """A job that came in this moment costs its own node a refusal, and no other."""
    way, table, names = full(5)
    table.stuck = "vn4"
    ended = delete(way, table, names)
    assert [type(error) for error in ended] == [type(None)] * 3 + [BusyError, type(None)]
    assert set(table.nodes) == {"vn4"}
    assert table.removed[-1] == ["vn4"]


def test_silence_at_a_removal_is_told_to_all() -> None:
    """Nobody tries one by one against a controller that does not answer."""
    way, table, names = full(3)
    table.dead = True
    ended = delete(way, table, names)
    assert all(isinstance(error, UnreachableError) for error in ended)
    assert table.removed == []


def test_what_could_be_there_is_announced_once() -> None:
    """By nodes of our shape that nobody sees; another shape replaces them."""
    table, way = Table(), Dynamic()
    wide = [replace(spec(i), name=f"{ROOM_NODE}-{i}", address="127.0.0.1") for i in (1, 2)]
    for _ in range(2):
        assert way.announce(table, wide) == []
    assert table.made == [["backfill-room-1", "backfill-room-2"]]
    assert way.view(table.nodes) == {}
    large = [replace(one, cpus=8) for one in wide]
    assert way.announce(table, large) == []
    assert [node.cpus for node in table.nodes.values()] == [8, 8]
    table.room = 2
    (said,) = way.announce(table, [*large, replace(large[0], name=f"{ROOM_NODE}-3")])
    assert said.startswith("Slurm may refuse jobs while it has no node of ours that could run them")


def test_what_somebody_has_woken_is_made_anew() -> None:
    """A job that Slurm sent there goes back first: nothing has heard of it."""
    table, way = Table(), Dynamic()
    rooms = [replace(spec(i), name=f"{ROOM_NODE}-{i}", address="127.0.0.1") for i in (1, 2)]
    assert way.announce(table, rooms) == []
    table.nodes["backfill-room-2"] = replace(table.nodes["backfill-room-2"], base=NodeBase.IDLE)
    assert way.announce(table, rooms) == []
    assert table.downed == ["backfill-room-2"]
    assert table.removed == [["backfill-room-2"]]
    assert {node.base for node in table.nodes.values()} == {NodeBase.FUTURE}
    assert len(table.nodes) == 2


def test_what_was_announced_for_wider_jobs_goes() -> None:
    """However many there were, by one command; what is still wanted stays."""
    table, way = Table(), Dynamic()
    rooms = [replace(spec(1), name=f"{ROOM_NODE}-{i}") for i in range(1, 201)]
    assert way.announce(table, rooms) == []
    assert way.announce(table, rooms[:2]) == []
    assert list(table.nodes) == ["backfill-room-1", "backfill-room-2"]
    assert len(table.removed) == 1
