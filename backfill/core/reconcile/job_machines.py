"""A job's own machines: held, spawned by its size, pinned to it, let go, reclaimed with it.

The order that makes them is a fleet's: all or nothing. What is here is whose they are, and when the
job may have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backfill.core.model.actions import HoldJob, PinJob, ReleaseJob, RevokeJob, TellJob, UnpinJob
from backfill.core.model.cluster import ENDED, OUR_REASON, Job, JobState, MachineRequest
from backfill.core.model.fleet import Flavour, Fleet, FleetState
from backfill.core.model.job_machines import JobMachines, MachinesState, render
from backfill.core.model.lifecycle import ABSENT, EvictionCause, ManagedNode, Phase
from backfill.core.model.plan import SetFleet, SetMachines
from backfill.core.model.refusals import Code, Goal, Reason, because
from backfill.core.model.sentences import sentence
from backfill.core.picture import Picture, met
from backfill.core.policies.own_machines import Hopeless
from backfill.core.policy import PolicySet
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, members
from backfill.core.reconcile.devices import not_lent
from backfill.core.reconcile.own_machines import (
    asks,
    awaits_job,
    fellows,
    guest_mb,
    image_for,
    margin_mb,
    never_own,
    share,
    too_many_now,
)

_HELD = "JobHeldAdmin"
_TAKEN = (EvictionCause.JOB, EvictionCause.MAINTENANCE, EvictionCause.OPERATOR, EvictionCause.BUDGET)


PLAIN = MachineRequest()  # what a job wants that says nothing of its machines


def _partitions(world: Picture, policies: PolicySet) -> list[str]:
    """Partitions in which jobs may wait that ask."""
    named = {*policies.priorities.low, *policies.own_machines.partitions}
    if policies.priorities.low_qos:
        named |= world.job_index.partitions_waiting() - {*policies.priorities.high}
    return sorted(named)


def plan_machines(builder: PlanBuilder) -> None:
    """Take in the jobs that ask for machines of their own and have none yet."""
    if builder.blind:
        return
    if not builder.policies.own_machines.enabled:
        _let_go(builder)
        return
    for job in _new(builder):
        size, flavour = _size(builder.policies, job)
        own = taken_in(builder, job, size, flavour, replace(job.machines or PLAIN, held=False))
        builder.add(SetMachines(own, own.reason))


def _let_go(builder: PlanBuilder) -> None:
    """Release the jobs that we, or job_submit.lua for us, hold for machines that nobody makes any more."""
    world = builder.world
    for job_id in sorted(world.job_index.held_asking - world.machines.keys()):
        job = world.jobs[job_id]
        if job.machines is not None and job.reason.startswith("JobHeld"):
            builder.insist(_unheld(job, job.machines), Goal.MACHINES)


def _unheld(job: Job, request: MachineRequest | None) -> ReleaseJob:
    why = "no job gets machines of its own now (own_machines.enabled)"
    text = f"{OUR_REASON} {why}"
    if request is not None:
        text += f" {render(replace(request, held=False))}"
    return ReleaseJob(subject=job.id, generation=job.restarts, reason=why, job_id=job.id, text=text)


def taken_in(
    builder: PlanBuilder, job: Job, size: int, flavour: Flavour, request: MachineRequest
) -> JobMachines:
    """Return the first record of a job's machines. `request`: what counts of its word, if it is readable."""
    now_s, usual = float(builder.now_s), builder.policies.instances.image
    image = image_for(builder.policies, job)
    return JobMachines(
        job.id,
        job.restarts,
        MachinesState.QUEUED,
        now_s,
        now_s,
        job.user,
        size,
        flavour,
        None if job.machines_fault is not None else request,
        "" if image == usual else image,
        reason="its job asks for it",
    )


def _new(builder: PlanBuilder) -> list[Job]:
    """Return waiting jobs that ask and are not known yet, in the order in which they were submitted."""
    world, policies = builder.world, builder.policies
    found = []
    for kind, ids in world.job_index.kinds_pending(_partitions(world, policies)):
        if asks(policies, kind):
            found += [world.jobs[job_id] for job_id in ids if job_id not in world.machines]
    return sorted((job for job in found if _waits(builder, job)), key=_submitted)


def _submitted(job: Job) -> tuple[float, int, str]:
    return job.submit_s, job.raw_id, job.id


def _waits(builder: PlanBuilder, job: Job) -> bool:
    """Return True if nothing but machines keeps the job waiting. Who holds it himself means that."""
    if job.reason.startswith("JobHeld"):
        return job.machines is not None and job.machines.held  # by us, or by job_submit.lua for us
    builder.wake_at(job.eligible_s)
    return builder.policies.demand.waits_for_room(job, builder.now_s)


def _size(policies: PolicySet, job: Job) -> tuple[int, Flavour]:
    """How many machines, and of what shape: what its word leaves open is as the job is."""
    usual, wanted = policies.instances.flavour, job.machines or PLAIN
    cpus, memory_mb = share(job)
    whole_mb = wanted.memory_mb or (guest_mb(usual, memory_mb) if memory_mb else usual.memory_mb)
    disk_gb = usual.disk_gb if wanted.disk_gb is None else -int(-wanted.disk_gb // 1)
    flavour = replace(
        usual,
        cpus=wanted.cpus or cpus,
        memory_mb=whole_mb,
        disk_gb=max(1, disk_gb),
        memory_margin_mb=margin_mb(usual, whole_mb),
    )
    return max(1, job.num_nodes), flavour


# --- one job's -----------------------------------------------------------------------------------


def step_machines(builder: PlanBuilder, name: str) -> None:
    """Take one job's own machines a step further."""
    own = builder.world.machines.get(name)
    if own is None or builder.blind:
        return
    job = builder.world.jobs.get(own.job)
    if not decided_over(own) and awaits_job(builder, own):
        return
    if job is not None and job.restarts != own.restarts:
        if _kept(builder, own, job):
            return
        job = None  # another run of it has none of these
    if job is not None and job.state is JobState.PENDING and own.state in _AWAITING:
        why = _fellow_lost(builder, own)
        if why and (_cancels(builder) or _held(builder, own, job)):
            _give_back(builder, own, why)
        if why:
            return
    _STEPS[own.state](builder, own, job if job is not None and job.state not in ENDED else None)


_AWAITING = (MachinesState.QUEUED, MachinesState.SPAWNING, MachinesState.SPAWNED)
_PINNED = (MachinesState.SPAWNED, MachinesState.ALLOCATED)


def _kept(builder: PlanBuilder, own: JobMachines, job: Job) -> bool:
    """Return True if Slurm has begun another run of the job on the machines that were pinned to it."""
    fleet = builder.world.fleets.get(own.fleet)
    there = fleet is not None and job.active and set(fleet.members).issuperset(job.nodes)
    if own.state not in _PINNED or not there:
        return False
    reason = f"run {job.restarts} of job {own.job} has begun on them"
    become(
        builder, own, MachinesState.ALLOCATED, reason, restarts=job.restarts, began_s=job.start_s, failures=0
    )
    return True


def become(
    builder: PlanBuilder, own: JobMachines, state: MachinesState, reason: str, **fields: object
) -> None:
    """Record the next state of a job's own machines."""
    builder.add(SetMachines(own.become(state, builder.now_s, reason, **fields), reason))


def _step_queued(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    if job is None or job.state is not JobState.PENDING:
        reclaim(builder, own, "its job has left the queue")
        return
    fleet = builder.world.fleets.get(own.fleet)
    begun = fleet is not None and fleet.state is not FleetState.WAITING
    if not begun and not builder.policies.own_machines.enabled:
        reclaim(builder, own, "own_machines.enabled is false")
        return
    never = never_own(builder, own, job)
    if never is not None and (_cancels(builder) or _held(builder, own, job)):
        _give_back(builder, own, sentence(never))
        return
    if never is not None or not _held(builder, own, job):
        return
    if not own.fleet:
        _order(builder, own)
        return
    if fleet is None or not fleet.growing:
        failed(builder, own, fleet)
    elif fleet.state is FleetState.MAKING:
        reason = f"{own.what} is being made" if own.size == 1 else f"{own.what} are being made"
        become(builder, own, MachinesState.SPAWNING, reason, spawning_s=float(builder.now_s))


def _order(builder: PlanBuilder, own: JobMachines) -> None:
    why = _not_yet(builder, own)
    if why is not None:
        builder.refuse(f"job {own.job}", Goal.MACHINES, why)
        return
    orders = own.orders + 1
    order = f"job-{own.job}-{orders}"
    reason = f"job {own.job} is to have them as its own"
    fleet = Fleet(
        order,
        own.size,
        FleetState.WAITING,
        builder.now_s,
        own.image,
        flavour=own.flavour,
        job=own.job,
        company=(own.request or PLAIN).company,
        reason=reason,
    )
    builder.add(SetFleet(fleet, reason))
    become(builder, own, own.state, "they are ordered", fleet=order, orders=orders)


def _not_yet(builder: PlanBuilder, own: JobMachines) -> Reason | None:
    """Return why it is not the turn of these, if it is not."""
    rule = builder.policies.own_machines
    if (why := too_many_now(builder, own)) is not None:
        return why
    first = builder.world.machine_index.first(rule.most_per_user)
    if first is None or _place(first) >= _place(own):
        return None
    first_s = first.queued_s + rule.passed_over_s
    builder.wake_at(first_s)
    if builder.now_s < first_s:
        return None
    builder.awaits(Topic.TURN)
    return because(Code.MACHINES_FIRST, job=first.job, passed_s=rule.passed_over_s)


def _place(own: JobMachines) -> tuple[float, str]:
    return own.queued_s, own.job


def _step_spawning(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    if job is None or job.state is not JobState.PENDING:
        reclaim(builder, own, "its job has left the queue")
        return
    fleet = builder.world.fleets.get(own.fleet)
    if fleet is None or fleet.state not in (FleetState.MAKING, FleetState.READY):
        failed(builder, own, fleet)
    elif not _held(builder, own, job):
        return
    elif fleet.state is FleetState.READY and pinned(builder, own, fleet):
        reason = f"{', '.join(fleet.members)} take job {own.job} and no other"
        become(builder, own, MachinesState.SPAWNED, reason, spawned_s=float(builder.now_s))
    elif len(fleet.members) == fleet.size:
        pin_members(builder, own, fleet)


def pin_members(builder: PlanBuilder, own: JobMachines, fleet: Fleet) -> None:
    """Keep them for the job once Slurm has met all of them, and before any of them is opened."""
    nodes = members(builder, fleet)
    if len(nodes) < fleet.size or not all(met(builder.world, node) for node in nodes):
        return
    if not pinned(builder, own, fleet):
        builder.insist(_pin_of(own, nodes), Goal.MACHINES)


def _pin_of(own: JobMachines, nodes: list[ManagedNode]) -> PinJob:
    names = tuple(node.name for node in nodes)
    lives = tuple(node.generation for node in nodes)
    return PinJob(
        subject=own.job,
        generation=own.restarts,
        reason="nobody else is to get in",
        job_id=own.job,
        nodes=names,
        lives=lives,
        inside=own.inside,
    )


def pinned(builder: PlanBuilder, own: JobMachines, fleet: Fleet) -> bool:
    """Return True if all of them are kept for the job, in their present lives."""
    return builder.world.pinned.get(own.job) == _pin_of(own, members(builder, fleet)).extra


def _step_spawned(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    fleet = builder.world.fleets.get(own.fleet)
    if job is None:
        reclaim(builder, own, "its job is over")
    elif job.state is not JobState.PENDING:
        _began(builder, own, job, fleet)
    elif (why := _lost(builder, own, fleet) or _unused(builder, own, job)) is not None:
        _give_up(builder, own, job, why)
    elif job.reason != _HELD or _held_by_another(builder, own, job):
        if own.released_s is None:
            become(builder, own, own.state, "its job was let go", released_s=float(builder.now_s))
    elif not await_devices(builder, own, fleet) and _fellows_ready(builder, own, fleet):
        builder.insist(_release(own), Goal.MACHINES)


def _give_up(builder: PlanBuilder, own: JobMachines, job: Job, why: Reason) -> None:
    """Take them from a job that did not come: it gets others, unless somebody holds it."""
    if _held_by_another(builder, own, job):
        reclaim(builder, own, f"its job is held by somebody else: {job.reason}")
    elif _held(builder, own, job):
        failed(builder, own, builder.world.fleets.get(own.fleet), why)


def await_devices(builder: PlanBuilder, own: JobMachines, fleet: Fleet | None) -> bool:
    """Return True while they lack devices that the job asks for; without them in time, they have failed."""
    nodes = [] if fleet is None else members(builder, fleet)
    lacks = next(filter(None, (not_lent(builder, node) for node in nodes)), None)
    if lacks is None:
        return False
    over_s = own.since_s + builder.policies.own_machines.start_within_s
    builder.wake_at(over_s)
    builder.awaits(Topic.READING)
    builder.refuse(f"job {own.job}", Goal.MACHINES, lacks)
    if builder.now_s >= over_s:
        failed(builder, own, fleet, lacks)
    return True


def _began(builder: PlanBuilder, own: JobMachines, job: Job, fleet: Fleet | None) -> None:
    theirs = set() if fleet is None else set(fleet.members)
    if theirs.issuperset(job.nodes):
        reason = f"job {own.job} runs on {', '.join(job.nodes)}"
        become(builder, own, MachinesState.ALLOCATED, reason, began_s=job.start_s)
    else:
        reclaim(builder, own, f"its job began on {', '.join(job.nodes)}")


def _unused(builder: PlanBuilder, own: JobMachines, job: Job) -> Reason | None:
    """Return why they are given up if something else holds up a job that was let go: they idle for nobody."""
    if own.released_s is None:
        return None
    within_s = builder.policies.own_machines.start_within_s
    builder.wake_at(own.released_s + within_s)
    if builder.now_s < own.released_s + within_s:
        return None
    # Our own hold, without which they are not given up, hides what it waited for.
    waits = "" if job.reason == _HELD else job.reason
    return because(Code.MACHINES_UNUSED, within_s=within_s, waits=waits)


def _lost(builder: PlanBuilder, own: JobMachines, fleet: Fleet | None) -> Reason | None:
    """Return which of them is not there any more before its job came, if one is not."""
    nodes = [] if fleet is None else members(builder, fleet)
    for node in nodes:
        if node.phase in (Phase.REMOVING, Phase.FAILED, Phase.GIVEN_UP, Phase.DRAINING):
            return because(Code.MACHINE_LOST, node=node.name)
    if fleet is None or fleet.state is not FleetState.READY or len(nodes) < fleet.size:
        return because(Code.MACHINE_LOST)
    return None


def _fellows_ready(builder: PlanBuilder, own: JobMachines, fleet: Fleet | None) -> bool:
    """Return True if the other components of a heterogeneous job have their machines, too.

    One that finds no room for too long makes these fail: they idle for nobody, and may be in its way.
    What is being made has limits of its own.
    """
    within_s = builder.policies.own_machines.start_within_s
    awaited = [other for other in fellows(builder, own) if other.state not in _PINNED]
    for other in awaited:
        if other.state is MachinesState.QUEUED:
            over_s = max(other.since_s, own.since_s) + within_s
            builder.wake_at(over_s)
            if builder.now_s >= over_s:
                waits = f"component {other.job} has no room for its own"
                why = because(Code.MACHINES_UNUSED, within_s=within_s, waits=waits)
                failed(builder, own, fleet, why)
                return False
    return not awaited


def _fellow_lost(builder: PlanBuilder, own: JobMachines) -> str:
    """Return why another component of a heterogeneous job is not to have machines; empty: it may."""
    lost = []
    for other in fellows(builder, own):
        job = builder.world.jobs.get(other.job)
        going = other.state is MachinesState.RECLAIMED and other.after is MachinesState.GIVEN_BACK
        if job is not None and (going or other.state is MachinesState.GIVEN_BACK):
            lost.append(f"component {other.job} has none: {other.reason}")
    return min(lost, key=len, default="")  # the others quote that one


def _step_allocated(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    if job is None or job.state is JobState.PENDING:
        reclaim(builder, own, "its job is over")


def _step_reclaimed(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    """All of them go, and then the job may be on other nodes; who is to have others is held first."""
    fleet = builder.world.fleets.get(own.fleet)
    if fleet is not None and fleet.state is FleetState.FAILED:
        builder.add(SetFleet(replace(fleet, state=FleetState.GONE, reason=own.reason), own.reason))
        return
    if fleet is not None and fleet.state not in (FleetState.LEAVING, FleetState.UNDOING):
        builder.add(SetFleet(replace(fleet, state=FleetState.LEAVING, reason=own.reason), own.reason))
        return
    other = builder.world.jobs.get(own.job)
    waits = other is not None and other.state is JobState.PENDING
    if waits and other is not None and not other.reason.startswith("JobHeld"):
        builder.insist(_hold(own, "new machines are made for it"), Goal.MACHINES)
        return
    if fleet is not None:
        return
    if own.spawning_s is not None and builder.world.pinned.get(own.job) != "":
        builder.insist(
            UnpinJob(subject=own.job, generation=own.restarts, reason=own.reason, job_id=own.job),
            Goal.MACHINES,
        )
        return
    after = own.after if job is not None and job.state is JobState.PENDING else MachinesState.GONE
    if after is MachinesState.GIVEN_BACK:
        _tell_given_back(builder, own, own.reason)
    nothing = {"fleet": "", "spawning_s": None, "spawned_s": None, "released_s": None, "began_s": None}
    become(builder, own, after, own.reason, **nothing)


def _step_given_back(builder: PlanBuilder, own: JobMachines, job: Job | None) -> None:
    """Whoever releases it wants it to be tried again; or it is cancelled. Switched off, it waits no more."""
    if job is None or job.state is not JobState.PENDING:
        become(builder, own, MachinesState.GONE, "its job has left the queue")
        return
    if job.reason.startswith("JobHeld") and not builder.policies.own_machines.enabled:
        builder.insist(_unheld(job, own.request), Goal.MACHINES)
        return
    if _cancels(builder):
        builder.insist(
            RevokeJob(subject=own.job, generation=own.restarts, reason=own.reason, job_id=own.job),
            Goal.MACHINES,
        )
    elif not job.reason.startswith("JobHeld"):
        become(builder, own, MachinesState.GONE, "its job is not held any more")
        return
    builder.refuse(f"job {own.job}", Goal.MACHINES, because(Code.MACHINES_GIVEN_BACK, said=own.reason))


_STEPS: dict[MachinesState, Callable[[PlanBuilder, JobMachines, Job | None], None]] = {
    MachinesState.QUEUED: _step_queued,
    MachinesState.SPAWNING: _step_spawning,
    MachinesState.SPAWNED: _step_spawned,
    MachinesState.ALLOCATED: _step_allocated,
    MachinesState.RECLAIMED: _step_reclaimed,
    MachinesState.GIVEN_BACK: _step_given_back,
}


def decided_over(own: JobMachines) -> bool:
    """Return True if they go because their job was over, whatever Slurm shows of it now."""
    return own.state is MachinesState.RECLAIMED and own.after is MachinesState.GONE


# --- ends ----------------------------------------------------------------------------------------


def reclaim(builder: PlanBuilder, own: JobMachines, reason: str) -> None:
    """Nobody needs them any more. What they took is told to the job's account of itself."""
    if own.fleet and own.spawning_s is not None:
        instance_h, core_h = own.use(builder.now_s)
        reason += f"; its machines took {instance_h:.2f} instance hours, {core_h:.2f} core hours"
    if own.fleet:
        become(builder, own, MachinesState.RECLAIMED, reason, after=MachinesState.GONE)
    else:
        become(builder, own, MachinesState.GONE, reason)


def failed(builder: PlanBuilder, own: JobMachines, fleet: Fleet | None, why: Reason | None = None) -> None:
    """They came to nothing: all of them go, and are made anew unless that has failed too often.

    Who had to leave for a job of high priority has not failed, nor who was never complete for want of room.
    """
    there = [] if fleet is None else members(builder, fleet)
    pushed = fleet is not None and _pushed_off(fleet, there, why)
    said = sentence(why) if why is not None else "" if fleet is None else fleet.reason
    failures = own.failures + (not pushed and not _never_complete(fleet, there))
    most = builder.policies.own_machines.respawns
    after = MachinesState.QUEUED if failures <= most else MachinesState.GIVEN_BACK
    reason = f"they {'had to leave' if pushed else 'failed'}: {said or 'their order was deleted'}"
    if after is MachinesState.GIVEN_BACK:
        reason = f"its machines failed {failures} times, last with: {said or 'their order was deleted'}"
    become(builder, own, MachinesState.RECLAIMED, reason, after=after, failures=failures)


def _never_complete(fleet: Fleet | None, there: list[ManagedNode]) -> bool:
    """Return True if not all of the order could be begun, and none of what was begun has failed."""
    begun = fleet is not None and fleet.state is FleetState.UNDOING and fleet.all_begun_s is None
    return begun and all(node.phase is not Phase.GIVEN_UP for node in there)


def _pushed_off(fleet: Fleet, there: list[ManagedNode], why: Reason | None) -> bool:
    """Return True if one of them had to leave its host, and none has failed by itself."""
    if why is None and len(there) < len(fleet.members):
        return True
    leaving = [node for node in there if node.phase in ABSENT]
    return any(map(_had_to_leave, leaving)) and not any(node.fail for node in leaving)


def _had_to_leave(node: ManagedNode) -> bool:
    """Return True if it goes because something else was to have its host's CPUs."""
    return node.stop is not None and node.stop.cause in _TAKEN


def _give_back(builder: PlanBuilder, own: JobMachines, reason: str) -> None:
    """Give up what can never be: the job stays held, and its owner is told."""
    _tell_given_back(builder, own, reason)
    if own.fleet:
        become(builder, own, MachinesState.RECLAIMED, reason, after=MachinesState.GIVEN_BACK)
    else:
        become(builder, own, MachinesState.GIVEN_BACK, reason)


# --- what Slurm is told --------------------------------------------------------------------------


def _held(builder: PlanBuilder, own: JobMachines, job: Job) -> bool:
    """Return True if the job is held so that its owner cannot undo it; else see to that."""
    if job.reason == _HELD:
        return True
    builder.insist(_hold(own, "it waits for machines of its own"), Goal.MACHINES)
    return False


def _held_by_another(builder: PlanBuilder, own: JobMachines, job: Job) -> bool:
    """Return True if a job that was let go is held, and not by us: that is not ours to undo."""
    if own.released_s is None or not job.reason.startswith("JobHeld"):
        return False
    # Slurm holds all components of a heterogeneous job together, and one of them has our word.
    names = [own.job, *(other.job for other in fellows(builder, own))]
    whole = [builder.world.jobs[name] for name in names if name in builder.world.jobs]
    return not any(one.machines is not None and one.machines.held for one in whole)


def _hold(own: JobMachines, why: str) -> HoldJob:
    """Its word says that we hold it, so that whoever has no journal lets it go."""
    text = f"{OUR_REASON} held: {why}"
    if own.request is not None:
        text += f" ({own.what}) {render(replace(own.request, held=True))}"
    return HoldJob(subject=own.job, generation=own.restarts, reason=why, job_id=own.job, text=text)


def _release(own: JobMachines) -> ReleaseJob:
    why = f"its own is there: {own.what}" if own.size == 1 else f"its own are there: {own.what}"
    word = render(own.request or PLAIN)
    return ReleaseJob(
        subject=own.job,
        generation=own.restarts,
        reason=why,
        job_id=own.job,
        text=f"{OUR_REASON} {why} {word}",
    )


def _cancels(builder: PlanBuilder) -> bool:
    return builder.policies.own_machines.hopeless is Hopeless.CANCEL


def _tell_given_back(builder: PlanBuilder, own: JobMachines, reason: str) -> None:
    if _cancels(builder):
        return  # it is told with the call that cancels it
    said = f"{OUR_REASON} held: {reason}; scontrol release tries again"
    builder.do(
        TellJob(
            subject=own.job, generation=own.restarts, reason="its owner may ask", job_id=own.job, text=said
        )
    )
