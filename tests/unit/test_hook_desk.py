"""A hook that asks a daemon which has just started waits until its hosts are known."""

from __future__ import annotations

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.engine.hooking import HookDesk
from backfill.engine.messages import HookCall
from backfill.engine.watch import Watch

NOW_S, PATIENCE_S = 1_000_000.0, 1.5
ADDRESS = "10.77.0.11"


class Desk:
    """A desk whose world is fed by hand, and what it said."""

    def __init__(self) -> None:
        self.world = World()
        self.world.apply(ch.Tick(NOW_S))
        self.said: list[str] = []
        self.lends = False
        self.desk = HookDesk(
            self.world, Watch(0.03), ("slurm", "bm1", "bm2"), lambda *_: None, lambda: self.lends
        )

    def call(self, node: str = "bm1", peer: str = "", event: str = "allocated") -> HookCall:
        return HookCall(event, "7", (node,), peer, self.said.append)

    def early(self, now_s: float) -> list[ch.Change] | None:
        return self.desk.take_early(now_s, PATIENCE_S)

    def read_hosts(self, *names: str) -> None:
        for name in names:
            self.world.apply(ch.HostSeen(Host(name, name, Resources(2, 2000)), NOW_S))
            self.world.apply(ch.SourceSeen(name, NOW_S))

    def read_slurm(self) -> None:
        node = Node("bm1", NodeBase.IDLE, cpus=2, address=ADDRESS)
        self.world.apply(ch.NodeSeen(node, NOW_S))
        self.world.apply(ch.SourceSeen("slurm", NOW_S))


def test_a_call_before_the_first_picture_becomes_a_claim_with_it() -> None:
    """Its host is claimed from the moment at which the call came, so it is answered in time."""
    desk = Desk()
    assert desk.desk.take(desk.call(), NOW_S) == []
    assert desk.early(NOW_S + 0.1) is None
    desk.read_hosts("bm1")
    assert desk.early(NOW_S + 0.2) is None  # bm2 might be called bm1 in Slurm
    desk.read_hosts("bm2")
    assert desk.early(NOW_S + 0.3) == [ch.Claimed("7", ("bm1",), NOW_S, waiting=True)]
    assert desk.early(NOW_S + 0.4) is None
    assert desk.said == []
    desk.desk.answer(AnswerClaim("7", True, "free"))
    assert desk.said == ["ok free"]


def test_a_host_that_cannot_be_read_is_not_waited_for() -> None:
    """It was tried, and is in nobody's way."""
    desk = Desk()
    desk.desk.take(desk.call("n1"), NOW_S)
    desk.read_hosts("bm1")
    desk.world.apply(ch.SourceFailed("bm2", NOW_S, "no answer"))
    assert desk.early(NOW_S + 0.1) == []
    assert desk.said == ["ok no host of ours is among the nodes"]


def test_a_start_on_our_nodes_is_held_where_jobs_may_ask_for_devices() -> None:
    """Elsewhere it is let go at once."""
    desk = Desk()
    desk.read_hosts("bm1", "bm2")
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.READY, NOW_S, NOW_S)
    desk.world.apply(ch.NodeManaged(node))
    assert desk.desk.take(desk.call("vn1"), NOW_S) == []
    assert desk.said == ["ok no host of ours is among the nodes"]
    desk.lends = True
    held = ch.Claimed("7", (), NOW_S, waiting=True, nodes=("vn1",))
    assert desk.desk.take(desk.call("vn1"), NOW_S) == [held]
    assert len(desk.said) == 1


def test_a_hook_on_a_host_is_believed_once_slurm_was_read() -> None:
    """Slurm tells where each node lives, and a reading that failed tells nothing."""
    desk = Desk()
    desk.read_hosts("bm1", "bm2")
    desk.desk.take(desk.call(peer=ADDRESS), NOW_S)
    desk.world.apply(ch.SourceFailed("slurm", NOW_S, "no answer"))
    assert desk.early(NOW_S + 0.1) is None
    desk.read_slurm()
    assert desk.early(NOW_S + 0.2) == [ch.Claimed("7", ("bm1",), NOW_S, waiting=True)]


def test_nobody_waits_longer_than_the_policy_says() -> None:
    """Then the answer is no, which the hook writes down; the desk says when that will be."""
    desk = Desk()
    desk.desk.take(desk.call(), NOW_S)
    assert desk.desk.due_in_s(NOW_S + 1.0, PATIENCE_S) == 0.5
    assert desk.early(NOW_S + PATIENCE_S) == []
    assert desk.said == ["no bm1 has not been read yet"]


def test_a_hook_that_went_away_is_forgotten() -> None:
    """scancel before the first picture: nothing is claimed for nobody."""
    desk = Desk()
    call = desk.call()
    desk.desk.take(call, NOW_S)
    desk.desk.forget(call)
    desk.read_hosts("bm1", "bm2")
    assert desk.early(NOW_S + 0.1) is None


def test_an_end_or_an_arrival_waits_for_nothing() -> None:
    """They only make the daemon look, which it is about to do anyway."""
    desk = Desk()
    for event in ("ended", "arrived"):
        assert desk.desk.take(desk.call(event=event), NOW_S) == []
    assert desk.early(NOW_S + 10) is None
