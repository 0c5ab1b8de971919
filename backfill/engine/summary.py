"""The cluster in one sentence that an operator understands."""

from __future__ import annotations

from collections import Counter

from backfill.core.model.plan import Plan
from backfill.core.model.quantities import counted
from backfill.core.model.sentences import sentence, why
from backfill.core.picture import barred
from backfill.core.world import World

_MOST_NAMED = 6
# What begins the last part, which alone tells of people.
REFUSED = "; refused: "


def summary(world: World, plan: Plan) -> str:
    """Hosts, instances, queue, and what holds us up."""
    parts = [_hosts(world)]
    phases = Counter(m.phase.value for m in world.managed.values())
    phased = ", ".join(f"{n} {phase}" for phase, n in sorted(phases.items()))
    parts.append(counted(len(world.managed), "instance") + (f": {phased}" if phased else ""))
    if bar := barred(world):
        parts.insert(0, f"only hosts are given back, nothing else is done: {sentence(bar)}")
    parts.extend(_own_machines(world))
    working = sum(1 for o in world.operations.values() if o.running)
    if working:
        parts.append(f"{counted(working, 'operation')} under way")
    slurm = world.sources.get("slurm")
    if slurm is None or slurm.seen_s == 0.0:
        parts.append("waiting for the first word from Slurm")
    elif slurm.problem:
        parts.append(f"Slurm: {slurm.problem}")
    refused = f"{REFUSED}{why(plan.refusals[0])}" if plan.refusals else ""
    return "; ".join(parts) + refused


def _hosts(world: World) -> str:
    """Name the first few that are given away, closed or silent, and count the others."""
    hosts = sorted(world.hosts)
    given = [
        f"{h} given to {', '.join(t)}" for h in hosts if h not in world.closed and (t := world.takers(h))
    ]
    lost = [h for h in hosts if not world.hosts[h].reachable]
    closed = [h for h in hosts if h in world.closed]
    parts = [counted(len(hosts), "host")]
    parts += [
        f"({few})"
        for few in (_few(given), _few(closed, " closed by hand"), _few(lost, " cannot be reached"))
        if few
    ]
    return " ".join(parts)


def _few(items: list[str], what: str = "") -> str:
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{', '.join(items[:_MOST_NAMED])}{more}{what}" if items else ""


def _own_machines(world: World) -> list[str]:
    """Name how far the jobs with machines of their own are, if there are any."""
    if not world.machines:
        return []
    far = Counter(own.state.value for own in world.machines.values())
    told = ", ".join(f"{n} {state}" for state, n in sorted(far.items()))
    return [f"{counted(len(world.machines), 'job')} with own machines: {told}"]
