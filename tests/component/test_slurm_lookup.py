"""A NodeAddr that is a name: what it means now and what slurmctld uses are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.lookup import Lookup, resolve
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.addresses import EVERY_S, AddressBook
from backfill.engine.cycle import Cycle
from backfill.ports.errors import UnreachableError
from tests.component.living_daemon import policies
from tests.component.slurm_tools import FakeTools


def node(name: str, address: str) -> Node:
    return Node(name, NodeBase.IDLE, address=address)


BM1, BM2 = node("bm1", "bm1.example"), node("bm2", "10.0.0.2")
FLUSHED = "scontrol update NodeName=bm1 NodeAddr=bm1.example"
FIRST = "scontrol update NodeName=bm1 NodeAddr=10.0.0.9"


@pytest.fixture
def tools(tmp_path: Path) -> FakeTools:
    return FakeTools(tmp_path)


def lookup(tools: FakeTools, meant: Mapping[str, tuple[str, ...]]) -> Lookup:
    return Lookup(SlurmTools(bin_dir=tools.directory), lambda name: meant[name])


@pytest.mark.parametrize("used", ["10.0.0.1:6818", "[fd00::1]:6818"])
def test_slurmctld_tells_what_it_uses(tools: FakeTools, used: str) -> None:
    """Where that is none of the addresses that the name has now, it is told to look again."""
    tools.answer("getaddrs bm1", f"bm1: {used}\n")
    meant = {"bm1.example": ("10.0.0.1", "fd00::1")}
    look = lookup(tools, meant)
    assert look.refresh([BM1, BM2]) == {}
    meant["bm1.example"] = ("10.0.0.9", "fd00::9")
    (said,) = look.refresh([BM1, BM2]).values()
    assert said.startswith("its NodeAddr bm1.example means 10.0.0.9 or fd00::9 now, and slurmctld ")
    assert tools.changes() == ["scontrol getaddrs bm1"] * 2 + [FIRST, FLUSHED]


def test_an_old_slurmctld_is_told_once_and_then_believed(tools: FakeTools) -> None:
    """22.05 has no such command; once told it uses what the name means at that time."""
    tools.answer("getaddrs", err="invalid keyword: getaddrs", status=1)
    meant: dict[str, tuple[str, ...]] = {"bm1.example": ("10.0.0.1",)}
    look = lookup(tools, meant)
    assert look.refresh([BM1]) == {}
    meant["bm1.example"] = ("10.0.0.9",)
    assert look.refresh([BM1]).keys() == {"bm1"}
    assert look.refresh([BM1]) == {}
    assert tools.changes().count(FLUSHED) == 2


@pytest.mark.parametrize("fails", ["NodeAddr=10.0.0.9", "NodeAddr=bm1.example"])
def test_a_name_is_never_lost_half_way(tools: FakeTools, fails: str) -> None:
    """slurmctld falls silent in the middle: whether it has the address or not, it gets the name."""
    tools.answer(fails, err="Socket timed out on send/recv operation", status=1)
    meant = {"bm1.example": ("10.0.0.9",)}
    look = lookup(tools, meant)
    with pytest.raises(UnreachableError):
        look.refresh([BM1])
    tools.forget_answers()
    before = len(tools.changes())
    assert look.refresh([node("bm1", "10.0.0.9")]) == {}
    assert tools.changes()[before:] == [FLUSHED]
    assert look.refresh([node("bm1", "10.0.0.9")]) == {}
    assert tools.changes()[before:] == [FLUSHED]


def test_an_address_that_others_have_given_meanwhile_is_theirs(tools: FakeTools) -> None:
    """Only what we wrote ourselves is taken back."""
    tools.answer("NodeAddr=bm1.example", err="Socket timed out", status=1)
    look = lookup(tools, {"bm1.example": ("10.0.0.9",)})
    with pytest.raises(UnreachableError):
        look.refresh([BM1])
    tools.forget_answers()
    before = len(tools.changes())
    assert look.refresh([node("bm1", "10.0.0.77")]) == {}
    assert tools.changes()[before:] == []


def test_a_node_that_refuses_keeps_no_other_from_its_address(tools: FakeTools) -> None:
    """It is said of the one and done for the other."""
    tools.answer("NodeName=bm1", err="Access/permission denied", status=1)
    meant = {"bm1.example": ("10.0.0.9",), "bm2.example": ("10.0.0.8",)}
    said = lookup(tools, meant).refresh([BM1, node("bm2", "bm2.example")])
    assert "slurmctld could not be told that its NodeAddr bm1.example means 10.0.0.9" in said["bm1"]
    assert "scontrol update NodeName=bm2 NodeAddr=bm2.example" in tools.changes()


def test_where_all_have_addresses_nobody_is_asked(tools: FakeTools) -> None:
    """Nor is a node without any."""
    assert lookup(tools, {}).refresh([BM2, node("bm3", ""), node("bm4", "fe80::4")]) == {}
    assert tools.calls == []


def test_a_name_without_address_is_said_and_changes_nothing(tools: FakeTools) -> None:
    """slurmctld may know an address that still works; and its silence is not taken for one."""
    tools.answer("getaddrs", "bm1: 10.0.0.1:6818\n")
    (said,) = Lookup(SlurmTools(bin_dir=tools.directory)).refresh([node("bm1", "no such name")]).values()
    assert said.startswith("its NodeAddr no such name has no address here (")
    assert tools.changes() == ["scontrol getaddrs bm1"]
    tools.answer("getaddrs bm9", err="Unable to contact slurm controller", status=1)
    tools.directory.joinpath("scontrol").write_text("#!/bin/sh\necho Socket timed out >&2; exit 1\n")
    with pytest.raises(UnreachableError):
        lookup(tools, {"bm1.example": ("10.0.0.9",)}).refresh([BM1])


def test_a_name_of_this_machine_is_found() -> None:
    """As slurmctld does it."""
    assert "127.0.0.1" in resolve("localhost")


def test_once_a_minute_the_nodes_of_our_hosts_are_looked_up() -> None:
    """Not those of others, nor those with an address; the same news is said once."""
    world, journal = World(), MemoryJournal()
    asked: list[Sequence[str]] = []
    cycle = Cycle(world, policies(), journal, lambda action: None, lambda claim: None)
    room = Resources(4, 4000)
    for name in ("bm1", "bm2"):
        world.apply(ch.HostSeen(Host(name, name, room), 0.0))
    for one in (BM1, BM2, node("bm3", "bm3.example")):
        world.apply(ch.NodeSeen(one, 0.0))

    def look_up(names: Sequence[str]) -> bool:
        asked.append(names)
        return True

    book = AddressBook(cycle, look_up)
    for at_s in (0.0, 1.0, EVERY_S, EVERY_S + 1.0):
        book.look(at_s)
    assert asked == [["bm1"], ["bm1"]]
    world.apply(ch.NodeSeen(node("bm1", "10.0.0.9"), 0.0))  # of our own doing: half way
    book.look(2 * EVERY_S)
    assert asked == [["bm1"]] * 3
    for found in ({"bm1": "moved"}, {"bm1": "moved"}, {}, {"bm1": "moved"}):
        book.heard(found)
    assert [(r.kind, r.subject, r.body["why"]) for r in journal.read()] == [("address", "bm1", "moved")] * 2
