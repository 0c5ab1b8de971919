"""Sets aside whom no step can be decided for: a defect that one of them meets must not end all others.

No action comes from half a picture: the plan in which a step raised is thrown away as a whole, and
made anew without those. They are looked at again with the next plan for which they are marked, and within
a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import inf, nextafter

from backfill.core.model.fleet import Instance
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.refusals import Goal, step_failed
from backfill.core.queue import Entity, Kind, Result, again_s
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.course import begin_eviction
from backfill.core.reconcile.holding import hold_jobs
from backfill.core.reconcile.pressure import awaits_word, has_room_beside, must_leave, stop_where_wanted

Looks = Mapping[Kind, Callable[..., None]]

_IN_JOBS = (Kind.CLAIM, Kind.MACHINES)  # named by a job

_NO_STOP_YET = (Phase.BOOTING, Phase.READY, Phase.DRAINING, Phase.THROTTLED, Phase.RETURNING)

# So often has a plan raised for it: its own step did, then to tell whether it may stay or to have
# Slurm told, then even the pause.
_UNTOLD, _BARE = 2, 3


class StepsFailedError(Exception):
    """Steps raised in a plan, none of which may be carried out. `failed`: whose, and what."""

    def __init__(self, failed: Mapping[Entity, Exception]) -> None:
        self.failed = failed
        super().__init__(", ".join(f"{e.kind.name.lower()} {e.name}".strip() for e in failed))


class SetAside:
    """Who is set aside in one plan, why, and how much of what is done for such has failed as well."""

    def __init__(self) -> None:
        self.errors: dict[Entity, Exception] = {}  # the first of each
        self._times: dict[Entity, int] = {}

    def add(self, failed: Mapping[Entity, Exception]) -> None:
        """Note in which steps the latest try has raised."""
        for entity, error in failed.items():
            self.errors.setdefault(entity, error)
            self._times[entity] = self._times.get(entity, 0) + 1

    def may_pause(self, entity: Entity) -> bool:
        """Return True unless to pause it has failed."""
        return self._times[entity] < _BARE

    def may_tell(self, entity: Entity) -> bool:
        """Return True unless to tell whether it may stay, or to have Slurm told of its stop, has failed."""
        return self._times[entity] < _UNTOLD


class Sparing:
    """The looks of one plan, without those who are set aside."""

    def __init__(self, builder: PlanBuilder, looks: Looks, aside: SetAside) -> None:
        self._builder, self._looks, self._aside = builder, looks, aside
        self.failed: dict[Entity, Exception] = {}

    def look_at(self, entity: Entity, settled: bool) -> tuple[Result, bool]:
        """Look at an entity, unless it is set aside; where that raises, the next plan has to set it aside."""
        looks = self._looks
        if entity in self._aside.errors:
            looks = {entity.kind: partial(self._leave_alone, entity)}
        found = self._builder.try_to_look_at(looks, entity, settled)
        if not isinstance(found, Exception):
            return found
        self.failed[entity] = found
        return Result(), False

    def _leave_alone(self, entity: Entity, *_: str) -> None:
        """Say so. The host of an instance is given back all the same, where that can be told."""
        builder, aside = self._builder, self._aside
        subject = f"job {entity.name}" if entity.kind in _IN_JOBS and entity.name else entity.name
        builder.refuse(subject or "cluster", Goal.ANY_STEP, step_failed(aside.errors[entity]))
        builder.wake_at(again_s(builder.now_s))
        if entity.kind is not Kind.NODE or not aside.may_pause(entity):
            return
        node = builder.world.managed.get(entity.name)
        stays = None if node is None else _staying(builder, node, told=aside.may_tell(entity))
        for place in builder.world.places_of(entity.name):
            if place is not stays:
                stop_where_wanted(builder, place, "deciding about it failed")
        if node is not None and stays is None and aside.may_tell(entity):
            _see_to_jobs(builder, node)


def _staying(builder: PlanBuilder, node: ManagedNode, *, told: bool) -> Instance | None:
    """Return its instance, if that need not stop for who has the host: stopped, it would only come back.

    Not `told`: that may be what has failed, and is not asked again.
    """
    instance = builder.instance(node)
    if instance is None or not builder.taken_from(node):
        return None
    match node.phase:
        case Phase.THROTTLED:
            stays = instance.throttled  # it has given its CPUs back
        case Phase.READY | Phase.DRAINING if told:
            stays = not (builder.stopped(node) or must_leave(builder, node))
        case Phase.RETURNING if told:
            stays = has_room_beside(builder, node) or awaits_word(builder, node.host)
        case _:
            stays = False
    return instance if stays else None


def _see_to_jobs(builder: PlanBuilder, node: ManagedNode) -> None:
    """Have its jobs stand still in Slurm as well, where it does: their time limits would run out.

    A stop goes on the record first, from which the next plan goes on by the usual steps, if those
    can be taken; and by which it comes back.
    """
    if builder.instance(node) is None:
        return
    if node.phase is Phase.EVICTING and node.since_s >= builder.now_s:
        # The usual step may be possible, and is not taken here.
        builder.wake_at(nextafter(builder.now_s, inf))
    if node.phase is Phase.EVICTING and builder.stopped(node):
        hold_jobs(builder, node)
    elif node.phase in _NO_STOP_YET and builder.taken_from(node):
        begin_eviction(builder, node, doomed=node.phase in (Phase.BOOTING, Phase.DRAINING))
