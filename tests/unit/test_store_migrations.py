"""Journals that older programs wrote: every tool reads them as if they were of today."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Flavour, Rung
from backfill.core.model.lifecycle import (
    Cause,
    CheckpointOrder,
    Condemned,
    HeldJob,
    JobCheck,
    JobLimit,
    ManagedNode,
    NodeStop,
    Phase,
    RefusedSuspend,
    Retry,
    Suspicion,
)
from backfill.core.model.records import decode, encode, remembered
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.world import World
from backfill.drivers.store.formats import VERSION
from backfill.drivers.store.migrations import migrated
from backfill.drivers.store.sqlite import JournalReader, SqliteJournal
from backfill.engine.narrate import story_line
from backfill.ports.storage import Record
from backfill.sim.replay.journal import replay_journal
from backfill.ui.report.builder import timeline_of

# A daemon of the first release wrote it on a simulated cluster and was killed: vn2 was on its way
# from bm2 to bm1, vn3 aside on disk on bm3, and a checkpoint of vn4, which stood still, was ordered.
OLD = Path(__file__).parent / "journals" / "version_1.db.gz"
START_S = 1_700_000_000.0
RULES = PolicySet(
    cluster="sim",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(
        tuple(f"vn{i}" for i in range(1, 5)),
        tuple(f"10.77.1.{i}/16" for i in range(1, 5)),
        Flavour(cpus=1, memory_mb=256),
    ),
    hosts=("bm1", "bm2", "bm3", "bm4"),
    ladder=Ladder(
        (
            RungRule(Rung.PAUSE, within_s=5.0, for_s=8.0),
            RungRule(Rung.SUSPEND, within_s=60.0),
            RungRule(Rung.MIGRATE, within_s=60.0),
        )
    ),
    scale=Scale(idle_s=600, warm=3),
    limits=Limits(boots_at_once=4, removals_at_once=4, max_per_host=1),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The old daemon's journal."""
    made = tmp_path / "journal.db"
    made.write_bytes(gzip.decompress(OLD.read_bytes()))
    return made


def taken_over(path: Path) -> list[Record]:
    journal = SqliteJournal(path)
    found = list(journal.read())
    journal.close()
    return found


def nodes_of(changes: list[ch.Change]) -> dict[str, ManagedNode]:
    return {c.node.name: c.node for c in changes if isinstance(c, ch.NodeManaged)}


def test_a_restarted_daemon_knows_all_that_the_old_one_knew(path: Path) -> None:
    """What moves, what stands still and for which jobs, and what was ordered."""
    nodes = nodes_of(remembered(r.body for r in taken_over(path)))
    assert {n.name: n.phase for n in nodes.values()} == {
        "vn2": Phase.MOVING,
        "vn3": Phase.PARKED,
        "vn4": Phase.PARKED,
    }
    assert [n.held for n in nodes.values()] == [(HeldJob("2", 0),), (HeldJob("3", 0),), (HeldJob("4", 0),)]
    moving, aside, ordered = nodes["vn2"], nodes["vn3"], nodes["vn4"]
    assert moving.stop == NodeStop(START_S + 19, 1, Rung.SUSPEND, START_S + 11.12, target="bm1")
    assert aside.stop == NodeStop(START_S + 19, 1, Rung.SUSPEND, START_S + 11.12)
    assert aside.check == JobCheck(START_S + 11.1609998)
    assert (aside.order, aside.ordered_s, aside.idle_since_s, aside.condemned) == (None, None, None, None)
    assert (aside.retry, aside.suspicion, aside.evictions) == (Retry(), None, 1)
    assert ordered.order == CheckpointOrder("4-1700000078", ("vn4",))
    assert ordered.ordered_s == START_S + 78
    assert all(n.proof.report is not None and n.proof.proven_s for n in nodes.values())


def test_it_is_replayed_told_and_drawn(path: Path) -> None:
    """The whole story is legal for the world of today, and every tool has words and bars for it."""
    records = taken_over(path)
    world = World()
    for record in records:
        if record.kind == "change":
            world.apply(decode(record.body))
    assert {n.name: n.phase for n in world.managed.values()}["vn2"] is Phase.MOVING
    pushed = [(e.node, e.host) for e in timeline_of(records).evictions if e.parked_s]
    assert pushed == [("vn2", "bm2"), ("vn3", "bm3"), ("vn4", "bm4")]
    told = [story_line(r) for r in records]
    assert any("parked" in text for text in told)
    outcome = replay_journal(records, RULES)
    assert outcome.lives == 1
    assert outcome.plans > 50
    assert len(outcome.differences) < outcome.plans / 3  # decisions have got better since


def test_new_records_follow_and_are_read_as_they_are(path: Path) -> None:
    """Also by readers beside the daemon, page by page, and after a second start."""
    before = taken_over(path)
    journal = SqliteJournal(path)
    new = ManagedNode("vn9", "10.0.0.9/8", "bm1", 1, Phase.READY, 2.0, 2.0, idle_since_s=0.0)
    journal.append([Record(9.0, "change", "vn9", encode(ch.NodeManaged(new)))])
    journal.close()
    reader = JournalReader(path)
    found = list(reader.read())
    assert found[:-1] == before
    assert decode(found[-1].body) == ch.NodeManaged(new)
    lasting = reader.read(types={"NodeManaged"})
    assert nodes_of([decode(r.body) for r in lasting]).keys() == {"vn1", "vn2", "vn3", "vn4", "vn9"}
    reader.close()


FLAT: dict[str, Any] = {
    "name": "vn1",
    "address": "10.0.0.1/8",
    "host": "bm1",
    "generation": 7,
    "phase": "displaced",
    "since_s": 5.0,
    "created_s": 1.0,
}


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"phase": "draining", "rung_since_s": 2.0, "doomed": True}, {"stop": NodeStop(5.0, doomed=True)}),
        ({"phase": "removing"}, {"stop": None}),
        ({"phase": "ready", "rung_since_s": 2.0, "rung": 1}, {"stop": None}),
        (
            {"phase": "ready", "suspended_s": 4.0, "stuck_s": 4.5, "kicked": ["7"]},
            {"check": JobCheck(4.0, stuck_s=4.5, kicked=("7",))},
        ),
        ({"phase": "failed", "suspended_s": 4.0}, {"check": None}),
        ({"phase": "failed", "failures": 2, "not_before_s": 9.0}, {"retry": Retry(2, not_before_s=9.0)}),
        ({"returns": 3, "not_before_s": 9.0}, {"retry": Retry(0, 3, 9.0)}),
        (
            {"phase": "removing", "condemned": "stale", "condemned_s": 3.0, "unconfirmed": "it is there"},
            {"condemned": Condemned(Cause.STALE, 3.0), "unconfirmed": "it is there"},
        ),
        (
            {"suspicion": {"cause": "lost", "since_s": 3.0, "read_s": 0.0, "times": 0}},
            {"suspicion": Suspicion(Cause.LOST, 3.0)},
        ),
        (
            {
                "held": [
                    {
                        "id": "7",
                        "restarts": 1,
                        "ours": False,
                        "refused": "no",
                        "stopped_s": 3.0,
                        "limits": [{"id": "7", "limit_s": 60.0}],
                        "sure": True,
                    },
                    {"id": "8", "restarts": 0, "refused": "", "stopped_s": 0.0, "limits": []},
                ]
            },
            {
                "held": (
                    HeldJob("7", 1, ours=False, refused=RefusedSuspend("no", 3.0, (JobLimit("7", 60.0),))),
                    HeldJob("8", 0),
                )
            },
        ),
        (
            {"checkpoint": "7-1", "checkpoint_of": ["vn1"], "checkpoint_s": 4.0, "restoring": True},
            {"order": CheckpointOrder("7-1", ("vn1",), restoring=True), "ordered_s": 4.0},
        ),
        (
            {"idle_since_s": 4.0, "fleet": "f1", "fail": True},
            {"idle_since_s": 4.0, "fleet": "f1", "fail": True},
        ),
    ],
)
def test_flat_records_become_parts(fields: dict[str, Any], wanted: dict[str, Any]) -> None:
    """0 and an empty text stood for what had not come; fields of a phase stayed when it was over."""
    body = migrated({"t": "NodeManaged", "node": {**FLAT, **fields}}, 2)
    node = decode(body).node
    assert {name: getattr(node, name) for name in wanted} == wanted
    assert node.phase is Phase(fields.get("phase", "parked"))


def test_other_records_stay_and_those_of_today_are_not_touched() -> None:
    """An action with held jobs and an order for a fleet have parts, too."""
    body: dict[str, Any] = {"t": "Tick", "now_s": 0.0}
    assert migrated(body, 1) is body
    thaw = {"t": "ThawInstance", "held": [{"id": "7", "restarts": 0, "refused": "", "stopped_s": 0.0}]}
    assert migrated(thaw, 2)["held"] == [{"id": "7", "restarts": 0, "refused": None}]
    fleet = {"t": "FleetSet", "fleet": {"id": "f", "begun_s": 3.0, "ready_s": 0.0}}
    assert migrated(fleet, 2)["fleet"] == {
        "id": "f",
        "begun_s": 3.0,
        "ready_s": None,
        "all_begun_s": None,
        "over_s": None,
    }
    for one in (body, thaw, fleet):
        assert migrated(one, VERSION) is one
