"""Nodes that are wanted at the same time are made by one command, and each gets its own answer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from backfill.core.cluster import Node, NodeBase
from backfill.core.quantities import parse_hostlist
from backfill.drivers.slurm.registration import UNPROVEN, Dynamic
from backfill.ports import DriverError, NodeSpec, RefusedError, UnreachableError

COUNT = 20


def spec(number: int, cpus: int = 2) -> NodeSpec:
    return NodeSpec(f"vn{number}", f"10.77.1.{number}", cpus, 500, ("backfill",))


class Table:
    """Slurm's table of nodes as far as making some goes; `room` of them fit, `gate` holds it up."""

    def __init__(self, room: int = 1000) -> None:
        self.nodes: dict[str, Node] = {}
        self.room = room
        self.made: list[list[str]] = []
        self.drained: list[str] = []
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
        names, addresses = (values[key].split(",") for key in ("NodeName", "NodeAddr"))
        self.made.append(names)
        for name, address in zip(names, addresses, strict=True):
            if len(self.nodes) == self.room:
                raise RefusedError(subject, "Maximum node count exceeded")
            self.nodes[name] = Node(
                name, NodeBase.FUTURE, frozenset({"DYNAMIC_NORM"}), address=address,
                cpus=int(values["CPUs"]), memory_mb=int(values["RealMemory"]),
                features=tuple(values["Feature"].split(",")),
            )  # fmt: skip

    def set_drain(self, name: str, reason: str) -> None:
        for one in parse_hostlist(name):
            self.drained.append(one)
            drained = frozenset({"DRAIN", *self.nodes[one].flags})
            self.nodes[one] = replace(self.nodes[one], flags=drained, reason=reason)

    def assert_free(self, name: str) -> None:
        pass


def create(way: Dynamic, table: Table, wanted: Sequence[NodeSpec]) -> list[DriverError | None]:
    """Want all of them at once: one thread is let in, and the others come while it works."""

    def one(each: NodeSpec) -> DriverError | None:
        try:
            way.create(table, each)
        except DriverError as error:
            return error
        return None

    table.gate.clear()
    with ThreadPoolExecutor(len(wanted)) as pool:
        first = pool.submit(one, wanted[0])
        table.asked.acquire()
        rest = [pool.submit(one, each) for each in wanted[1:]]
        while len(way._together._waiting) < len(rest):
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


@pytest.mark.parametrize("again", [1, 2])
def test_what_is_there_already_costs_no_command(again: int) -> None:
    """Creating twice is creating once."""
    table, way = Table(), Dynamic()
    for _ in range(1 + again):
        way.create(table, spec(1))
    assert table.made == [["vn1"]]
    assert table.drained == ["vn1"]
