"""The cluster in one sentence: whole for a small one, bounded for a large one, and in plain words."""

from __future__ import annotations

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Host
from backfill.core.model.plan import Plan
from backfill.core.model.quantities import Resources
from backfill.core.world import World
from backfill.engine.summary import summary


def world(hosts: int) -> World:
    made = World()
    made.apply(ch.Tick(10.0))
    for number in range(1, hosts + 1):
        name = f"bm{number}"
        made.apply(ch.HostSeen(Host(name, name, Resources(2, 2000)), 10.0))
    return made


def test_a_host_that_people_closed_is_said_to_be_closed() -> None:
    made = world(3)
    made.apply(ch.HoldSet("bm2", 10.0, True, "new memory"))
    assert summary(made, Plan()).startswith("3 hosts (bm2 closed by hand); 0 instances")


def test_a_large_cluster_has_a_short_sentence_too() -> None:
    """The first few by name, the others by their number."""
    made = world(2000)
    for number in range(1, 1001):
        made.apply(ch.HoldSet(f"bm{number}", 10.0, True, "work"))
    told = summary(made, Plan())
    assert "and 994 more closed by hand" in told
    assert len(told) < 200


def test_what_bars_us_is_named_once() -> None:
    """An error of the journal's names it already; one that names its path does not."""
    of = world(1)
    of.apply(ch.Barred("journal", 1.0, "journal: its disk did not answer within 1 s"))
    told = summary(of, Plan())
    assert "journal: its disk did not answer within 1 s" in told
    assert "journal: journal:" not in told
    of.apply(ch.Barred("journal", 2.0, "/var/lib/j.db: the disk is full; make room"))
    assert "journal: /var/lib/j.db: the disk is full" in summary(of, Plan())
