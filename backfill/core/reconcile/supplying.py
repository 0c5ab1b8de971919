"""Pilots on demand: sent while rooms are idle and payloads wait, withdrawn again, told of their end."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from backfill.core.model.actions import SubmitPilot, TellPilot, WithdrawPilot
from backfill.core.model.cluster import ENDED, Job, JobState, end_s
from backfill.core.model.lifecycle import ABSENT, ManagedNode, Phase
from backfill.core.model.operations import Operation
from backfill.core.model.pilots import name_of, slot_of, slot_of_name
from backfill.core.model.readiness import image_streak
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, limit
from backfill.core.placement import count_on, node_of, open_hosts, wanted_again_s
from backfill.core.policies.supply import Offer, PilotsWanted
from backfill.core.queue import Topic
from backfill.core.reconcile.admission import MINUTE_S, unheard_nodes
from backfill.core.reconcile.builder import PlanBuilder, Progress, most_instances, on_cpu
from backfill.core.reconcile.making_room import seeking_room
from backfill.core.reconcile.names import names_of
from backfill.core.reconcile.own_machines import kinds_waiting
from backfill.core.remainders import instances_for
from backfill.core.room import places_now

_FAILED = (JobState.FAILED, JobState.OUT_OF_MEMORY)
_SOON_S = 600.0  # a pilot that fails later has at least been at work
_NEWS_S = 60.0  # a time that differs by less is not told again
_PRESENT = tuple(phase for phase in Phase if phase not in ABSENT)


def plan_supply(builder: PlanBuilder) -> None:
    """Compare pilots that wait with rooms that are idle and payloads that wait; send or withdraw some."""
    supply = builder.policies.supply
    if not supply.on or builder.blind:
        return
    pilots = builder.world.pilots.of(supply.user)
    for job in pilots:
        if job.state is JobState.RUNNING:
            _tell(builder, job)
    silent = _silent(builder)
    if silent is not None:
        builder.refuse("cluster", Goal.PILOT, silent)
        return  # what waits goes on waiting: that is no sign that nobody needs it
    there = [job for job in pilots if _lives(job)]
    asked = _under_way(builder, there)
    wanted = supply.wanted(_offer(builder, there, len(asked)))
    # More may wait at an access point that is silent: that is no sign either.
    _withdraw(builder, there, 0 if builder.world.pilots.pool.silent else wanted.surplus)
    why = _send(builder, pilots, {_slot(job) for job in there} | asked, wanted)
    if why is not None:
        builder.refuse("cluster", Goal.PILOT, why)


def _lives(job: Job) -> bool:
    """Return True until Slurm has taken the last of it from its nodes."""
    return job.state not in ENDED or job.holds_nodes


def _slot(job: Job) -> int:
    return slot_of(job.name, job.comment) or 0


def _silent(builder: PlanBuilder) -> Reason | None:
    """Return why nothing is known of what waits in the pool, if it is not."""
    pool, stale_s = builder.world.pilots.pool, builder.policies.supply.stale_after_s
    if pool.seen_s and builder.now_s - pool.seen_s <= stale_s:
        builder.wake_at(pool.seen_s + stale_s + 1.0)
        if not pool.problem:
            return None
    elif not pool.problem:
        return because(Code.POOL_UNREAD)
    return because(Code.POOL_SILENT, said=Words(pool.problem))


def _under_way(builder: PlanBuilder, there: list[Job]) -> set[int]:
    """Slots whose pilots are being sent, and that Slurm does not show yet."""
    names = builder.under_way(SubmitPilot.__name__, but="") - {job.name for job in there}
    return {slot for name in names if (slot := slot_of_name(name)) is not None}


# --- rooms ---------------------------------------------------------------------------------------


def _offer(builder: PlanBuilder, there: list[Job], asked: int) -> Offer:
    world = builder.world
    waiting = [job for job in there if job.state is JobState.PENDING]
    fresh = [job for job in there if _is_fresh(builder, job)]
    flavour = builder.policies.instances.flavour
    need = builder.policies.demand.need_of(kinds_waiting(world, builder.policies), flavour, builder.now_s)
    limits = [job.time_limit_s or inf for job in waiting] + [inf] * asked
    rooms, given = tuple(_rooms(builder)), world.ready.memory_is_given
    taken = instances_for(need.shares, flavour, len(rooms) + len(waiting), memory_is_given=given)
    others = max(0, taken - len(waiting)) + len(seeking_room(builder))
    return Offer(rooms, others, tuple(limits), len(fresh), len(there) + asked, world.pilots.pool.idle)


def _is_fresh(builder: PlanBuilder, job: Job) -> bool:
    """Return True of a pilot that has begun, and of which its pool may not know yet."""
    if not job.active:
        return False
    known_s = job.start_s + builder.policies.supply.seen_after_s
    builder.wake_at(known_s)
    # A picture of the pool is as old as its reading.
    return builder.world.pilots.pool.seen_s < known_s


def _rooms(builder: PlanBuilder) -> Iterator[float]:
    """Yield for how long each idle room is free: instances without a job, and room for new ones."""
    world, policies = builder.world, builder.policies
    builder.awaits(Topic.ROOM)
    usual = policies.instances.flavour
    for name in sorted(world.ready.idle - world.ready.shut - unheard_nodes(builder)):
        node = world.managed[name]
        if usual.cpus <= policies.instances.flavour_of(node).cpus:
            yield _free_s(builder, node.host)
    for name in sorted(world.fleet.in_phase(Phase.BOOTING)):
        yield max(0.0, _free_s(builder, world.managed[name].host) - policies.gaps.boot_pays_s)
    left = _may_come(builder)
    shape, pays_s = policies.instances.flavour.resources, policies.gaps.boot_pays_s
    for host, _ in open_hosts(world, policies, pays_s)[0] if left > 0 else ():
        fit = places_now(world, host, policies, shape)
        fit = min(fit, policies.limits.max_per_host - count_on(world, host), left)
        left -= max(0, fit)
        yield from [_free_s(builder, host) - pays_s] * fit


def _may_come(builder: PlanBuilder) -> int:
    """Return how many further instances there may be in all, wherever they are."""
    world, policies = builder.world, builder.policies
    if policies.readiness.open_breaker(world.streaks, world.now_s, image_streak(""), policies.hosts):
        return 0
    left = policies.limits.max_instances - world.fleet.count_in(*_PRESENT)
    most = most_instances(world, policies)
    if most is not None:
        left = min(left, most - on_cpu(world))
    return min(left, sum(1 for _ in names_of(world, policies).free(world)))


def _free_s(builder: PlanBuilder, host: str) -> float:
    """Return for how long the host is free as far as is known; infinite where nothing is."""
    wanted_s = _wanted_s(builder, host)
    if wanted_s is None:
        return inf
    builder.awaits(Topic.TIME)
    return max(0.0, wanted_s - builder.now_s)


def _wanted_s(builder: PlanBuilder, host: str) -> float | None:
    node = node_of(builder.world, host)
    return None if node is None else wanted_again_s(node)


# --- sending and withdrawing ---------------------------------------------------------------------


def _send(builder: PlanBuilder, pilots: list[Job], taken: set[int], wanted: PilotsWanted) -> Reason | None:
    """Send pilots into the lowest slots; return why no more are sent, if that has a reason."""
    supply = builder.policies.supply
    if not wanted.limits_s:
        return wanted.why
    bad = [job for job in pilots if job.state in _FAILED and builder.now_s - job.start_s < _SOON_S]
    if len(bad) >= supply.failures:
        builder.wake_at(min(job.start_s for job in bad) + _SOON_S)
        return because(Code.PILOTS_FAIL, count=len(bad), job=max(bad, key=lambda job: job.raw_id).id)
    lately = [job.submit_s for job in pilots if job.submit_s > builder.now_s - MINUTE_S]
    shown = {_slot(job) for job in pilots if _lives(job)}
    left = supply.per_min - len(lately) - len(taken - shown)
    limits, stuck = [*wanted.limits_s], 0
    for slot in _free_slots(builder, taken):
        # What Slurm has refused for several it would refuse for the next.
        if not limits or stuck >= supply.failures:
            break
        if left <= 0:
            builder.wake_at(min(lately, default=builder.now_s) + MINUTE_S)
            return limit("supply.per_min", supply.per_min)
        if _submit(builder, slot, limits[0]) is Progress.BEGUN:
            left -= 1
            limits.pop(0)
        else:
            stuck += 1
    return None


def _free_slots(builder: PlanBuilder, taken: set[int]) -> Iterator[int]:
    """Yield slots without a pilot, but for those whose name another job has: a pilot would wait for it."""
    supply = builder.policies.supply
    in_the_way = builder.world.pilots.in_the_way(supply.user)
    for slot in range(1, supply.most + 1):
        if slot in taken:
            continue
        if (job := in_the_way.get(slot)) is None:
            yield slot
        else:
            builder.refuse(name_of(slot), Goal.PILOT, because(Code.PILOT_NAME, job=job.id, user=job.user))


def _submit(builder: PlanBuilder, slot: int, limit_s: float) -> Progress:
    policies, supply = builder.policies, builder.policies.supply
    action = SubmitPilot(
        subject=name_of(slot),
        generation=0,
        reason=f"{builder.world.pilots.pool.idle} payloads wait in the pool, and a room is idle",
        slot=slot,
        limit_s=limit_s,
        user=supply.user,
        partition=supply.partition,
        script=supply.script,
        directory=supply.directory,
        cpus=policies.instances.flavour.cpus,
        options=supply.options,
    )
    return builder.insist(action, Goal.PILOT)


def _withdraw(builder: PlanBuilder, there: list[Job], surplus: int) -> None:
    """Take back those that came last, of those that have waited for long; and one that is a slot's second."""
    keep_s = builder.policies.supply.keep_s
    waiting = [job for job in there if job.state is JobState.PENDING and not job.restarts]
    first: dict[int, str] = {}
    for job in there:
        first.setdefault(_slot(job), job.id)
    for job in sorted(waiting, key=lambda job: -job.raw_id):
        second = first[_slot(job)] != job.id
        if not second and surplus <= 0:
            continue
        surplus -= not second
        due_s = job.submit_s + keep_s
        if not second and builder.now_s < due_s:
            builder.wake_at(due_s)
            continue
        why = "another one of its slot is there" if second else "no room or no payload needs it any more"
        builder.do(WithdrawPilot(subject=job.name, generation=0, reason=why, job_id=job.id))


# --- when the room goes --------------------------------------------------------------------------


def _tell(builder: PlanBuilder, job: Job) -> None:
    """Let its Machine/Job Features say when its host is wanted, where that is known, or was told before."""
    node = _node(builder, job)
    if node is None:
        return
    over_s, wanted_s = end_s(job), _wanted_s(builder, node.host)
    known = builder.world.pilots.told.get(job.id)
    told_s = known[1] if known is not None and known[0] == job.restarts else None
    if wanted_s is None and told_s is None:
        return  # its own time limit it knows from Slurm
    ends_s = min(inf if over_s is None else over_s, inf if wanted_s is None else wanted_s)
    if ends_s == inf or (told_s is not None and abs(ends_s - told_s) < _NEWS_S):
        return
    clock_s = ends_s - builder.world.ahead_s  # its guest goes by the machine's clock
    why = "when its room goes is known"
    action = TellPilot(
        subject=node.name,
        generation=node.generation,
        reason=why,
        host=node.host,
        job_id=job.id,
        number=job.raw_id,
        restarts=job.restarts,
        ends_s=float(clock_s),
    )
    operation: Operation | None = builder.operation(action)
    if operation is None or not operation.final:
        builder.insist(action, Goal.PILOT_TOLD, about=job.id)
    else:
        builder.refuse(
            node.name, Goal.PILOT_TOLD, because(Code.CALL_FAILED, said=Words(operation.problem)), job.id
        )


def _node(builder: PlanBuilder, job: Job) -> ManagedNode | None:
    """Return the node of ours on which a pilot is at work, where its guest can be asked now."""
    node = builder.world.managed.get(job.nodes[0]) if job.nodes else None
    return node if node is not None and node.phase is Phase.READY else None
