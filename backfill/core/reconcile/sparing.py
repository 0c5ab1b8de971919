"""Sets aside whom no step can be decided for: a defect that one of them meets must not end all others.

No action comes from half a picture: the plan in which a step raised is thrown away as a whole, and
made anew without those. They are looked at again with the next plan for which they are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from backfill.core.model.refusals import Code, Goal, Words, because
from backfill.core.queue import Entity, Kind, Result
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.pressure import stop_where_wanted

Looks = Mapping[Kind, Callable[..., None]]

_MOST_SAID = 200
_IN_JOBS = (Kind.CLAIM, Kind.MACHINES)  # named by a job


class StepsFailedError(Exception):
    """Steps raised in a plan, none of which may be carried out. `failed`: whose, and what."""

    def __init__(self, failed: Mapping[Entity, Exception]) -> None:
        self.failed = failed
        super().__init__(", ".join(f"{e.kind.name.lower()} {e.name}".strip() for e in failed))


class Sparing:
    """The looks of one plan, without those who are set aside.

    `bare`: those of them that not even their hosts can be taken from.
    """

    def __init__(
        self, builder: PlanBuilder, looks: Looks, aside: Mapping[Entity, Exception], bare: frozenset[Entity]
    ) -> None:
        self._builder, self._looks, self._aside, self._bare = builder, looks, aside, bare
        self.failed: dict[Entity, Exception] = {}

    def look_at(self, entity: Entity, settled: bool) -> tuple[Result, bool]:
        """Look at an entity, unless it is set aside; where that raises, the next plan has to set it aside."""
        looks = self._looks
        if entity in self._aside:
            looks = {entity.kind: partial(self._leave_alone, entity)}
        found = self._builder.try_to_look_at(looks, entity, settled)
        if not isinstance(found, Exception):
            return found
        self.failed[entity] = found
        return Result(), False

    def _leave_alone(self, entity: Entity, *_: str) -> None:
        """Say so. The host of an instance is given back all the same, where that can be told."""
        builder, said = self._builder, repr(self._aside[entity])[:_MOST_SAID]
        subject = f"job {entity.name}" if entity.kind in _IN_JOBS and entity.name else entity.name
        builder.refuse(subject or "cluster", Goal.ANY_STEP, because(Code.STEP_FAILED, said=Words(said)))
        if entity.kind is Kind.NODE and entity not in self._bare:
            for place in builder.world.places_of(entity.name):
                stop_where_wanted(builder, place, "deciding about it failed")
