"""The order of a cycle: whatever it begins is in the journal before."""

from __future__ import annotations

from backfill.core.model import actions as act
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import SetNode
from backfill.core.model.records import decode
from backfill.core.reconcile.planner import enact
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from tests.unit.test_stops import PARKED, POLICIES, job, world_of


def test_what_is_begun_is_stored_before() -> None:
    """Were it not, a daemon that dies in the call would not know of it."""
    journal = MemoryJournal()
    begun: list[act.DriverAction] = []

    def start(action: act.DriverAction) -> None:
        stored = [decode(record.body) for record in journal.read() if record.kind == "intent"]
        assert action in stored
        begun.append(action)

    parked = world_of(PARKED, job("7"), job("8"))
    Cycle(parked, POLICIES, journal, start, lambda answer: None).decide()
    assert [type(action) for action in begun] == [act.ThawInstance]


def test_a_plan_knows_the_record_before_each_of_its_steps() -> None:
    """The journal tells of a record only what is new, so it has to know what each step has begun with."""
    parked = world_of(PARKED, job("7"), job("8"))
    found = enact(parked, POLICIES)
    records: list[ManagedNode | None] = [PARKED]
    for step, before in zip(found.actions, found.before, strict=True):
        if isinstance(step, SetNode):
            assert before == records[-1]
            records.append(step.node)
    assert [node.phase for node in records if node] == [Phase.PARKED, Phase.RETURNING]
    assert parked.managed[PARKED.name].phase is Phase.RETURNING
    assert found.records_before() == {PARKED.name: PARKED}
