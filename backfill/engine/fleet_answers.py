"""Fleets and jobs' own machines as people see them: what is there, what it took, what it waits for."""

from __future__ import annotations

from dataclasses import asdict

from backfill.core.model.fleet import Fleet
from backfill.core.model.job_machines import JobMachines
from backfill.core.model.lifecycle import Phase
from backfill.core.world import World


def fleets_in_order(world: World) -> list[Fleet]:
    """All orders, the oldest first."""
    return sorted(world.fleets.values(), key=lambda f: (f.ordered_s, f.id))


def fleet_told(world: World, fleet: Fleet, lacking: str = "") -> dict[str, object]:
    """Return an order as people see it: with its members and the seconds that each part took.

    `lacking` is what keeps it from going on just now.
    """
    nodes = [node for name in fleet.members if (node := world.managed.get(name)) is not None]
    there = [node for node in nodes if node.fleet == fleet.id]
    return {
        **asdict(fleet),
        "state": fleet.state.value,
        "reason": lacking or fleet.reason,
        "method": fleet.method.value if fleet.method else "",
        "members": [
            {
                "name": node.name,
                "host": node.host,
                "address": node.address,
                "phase": node.phase.value,
                "ready_s": _took(fleet.ordered_s, node.proof.proven_s),
            }
            for node in there
        ],
        "ready": sum(1 for node in there if node.phase is Phase.READY),
        "steps_s": {
            "waited": _took(fleet.ordered_s, fleet.begun_s),
            "begun": _took(fleet.begun_s, fleet.all_begun_s),
            "made": _took(fleet.all_begun_s, fleet.ready_s),
            "total": _took(fleet.ordered_s, fleet.over_s if fleet.ready_s is None else fleet.ready_s),
        },
    }


def machines_told(world: World, own: JobMachines) -> dict[str, object]:
    """Return a job's own machines: how far they are, where, and the seconds that each step took."""
    fleet = world.fleets.get(own.fleet)
    instance_h, core_h = own.use(world.now_s)
    return {
        "state": own.state.value,
        "since_s": own.since_s,
        "what": own.what,
        "image": own.image,
        "members": [] if fleet is None else list(fleet.members),
        "failures": own.failures,
        "use": {"instance_h": round(instance_h, 4), "core_h": round(core_h, 4)},
        "reason": own.reason,
        "steps_s": {
            "waited": _took(own.queued_s, own.spawning_s),
            "made": _took(own.spawning_s, own.spawned_s),
            "let_go": _took(own.spawned_s, own.released_s),
            "begun": _took(own.released_s, own.began_s),
        },
    }


def _took(start_s: float | None, end_s: float | None) -> float | None:
    return round(end_s - start_s, 3) if start_s is not None and end_s is not None else None
