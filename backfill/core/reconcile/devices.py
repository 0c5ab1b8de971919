"""Devices of the job that is on a node: plugged in when it comes, given back when it has gone."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.model.actions import HoldDevices, PlugDevices, ReturnDevices, UnplugDevices
from backfill.core.model.cluster import ENDED, Job
from backfill.core.model.devices import DeviceLoan, Wanted
from backfill.core.model.fleet import Instance, InstanceState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, call_failed
from backfill.core.picture import Picture
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress
from backfill.core.room import no_memory, own_loan, room

_HOLD = f"{HoldDevices.__name__}:"
_CALLS = (_HOLD, f"{PlugDevices.__name__}:")


_TRIES = 3  # to plug devices before a job goes on without


def see_to_devices(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Level-triggered: what the instance holds is compared with what its jobs ask for."""
    holder = instance.devices_of
    if not (holder or node.job or builder.policies.devices.entries):
        return
    jobs = _borrowers(builder, node)
    if holder and all(job.id != holder for job in jobs):
        _take_back(builder, node, holder)
        return
    for job in jobs:
        loan = _loan(builder, node, job)
        if loan is None or (job.id == holder and instance.plugged):
            continue
        if holder == job.id:
            # What is being given is held before it is plugged.
            if not any(o.running and o.key.startswith(_HOLD) for o in builder.world.calls.all_of(node.name)):
                _plug(builder, node, job.id)
            return
        if holder:
            held = because(Code.DEVICES_HELD, job=holder, host=node.host)
            builder.refuse(node.name, Goal.DEVICES, held, job.id)
            continue
        _hold(builder, node, job, loan)
        return


def _take_back(builder: PlanBuilder, node: ManagedNode, holder: str) -> None:
    """Take devices from a job that has left the node: one of which Slurm shows nothing may be there still."""
    if holder == node.job and holder not in builder.world.jobs and not builder.surely_gone(holder):
        builder.refuse(node.name, Goal.UNPLUG, because(Code.JOB_MISSING, job=holder))
        return
    if any(held.id == holder for held in builder.vanished(node.name)):
        builder.refuse(node.name, Goal.UNPLUG, because(Code.MAY_HAVE_JOBS, jobs=(holder,)))
        return
    reason = f"job {holder} has left {node.name}"
    builder.do(
        ReturnDevices(
            subject=node.name, generation=node.generation, reason=reason, host=node.host, of=node.job
        )
    )


def _borrowers(builder: PlanBuilder, node: ManagedNode) -> Sequence[Job]:
    """Jobs that may have devices there: of a machine that is a job's own that job, also before it begins."""
    if not node.job:
        return builder.world.jobs_on(node.name)
    job = builder.world.jobs.get(node.job)
    return [] if job is None or job.state in ENDED else [job]


def _loan(builder: PlanBuilder, node: ManagedNode, job: Job) -> DeviceLoan | None:
    """Return what the job is to have there: by its own word, or by its constraint."""
    if node.job == job.id and (own := own_loan(builder.world, job.id)) is not None:
        return own
    rule = builder.policies.devices.asked(job)
    return None if rule is None else rule.loan


def not_lent(builder: PlanBuilder, node: ManagedNode) -> Reason | None:
    """Return what a job's own machine has not got yet, if it lacks anything that the job asks for."""
    loan, instance = own_loan(builder.world, node.job), builder.instance(node)
    there = instance is not None and instance.devices_of == node.job and instance.plugged
    if loan is None or there:
        return None
    said = _said(builder.world, node.name)
    return because(Code.NO_DEVICES_YET, node=node.name, device=loan.name, said=said)


def unplug_first(builder: PlanBuilder, node: ManagedNode) -> Progress | None:
    """Take devices out of a guest that still runs and is to be written to disk; None: go on.

    Once it stands still it cannot let go of them. Where that fails they are in it again, and the
    writing is refused: the ladder goes on with its next rung.
    """
    instance = builder.instance(node)
    if instance is None or not instance.plugged or instance.state is not InstanceState.RUNNING:
        return None
    reason = f"its memory is to be written: {node.reason}"
    action = UnplugDevices(subject=node.name, generation=node.generation, reason=reason, host=node.host)
    failed = builder.operation(action)
    if failed is not None and failed.since_s >= node.since_s and not failed.running:
        builder.refuse(node.name, Goal.UNPLUG, call_failed(failed.problem))
        return None
    return builder.do(action)


def plugged_again(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its job, which is about to go on, has its devices, or will have to do without."""
    instance = builder.instance(node)
    if instance is None or not instance.devices_of or instance.plugged:
        return True
    holder = instance.devices_of
    missing = holder == node.job and holder not in builder.world.jobs and not builder.surely_gone(holder)
    if not missing and all(job.id != holder for job in _borrowers(builder, node)):
        return True
    return _plug(builder, node, instance.devices_of)


def _plug(builder: PlanBuilder, node: ManagedNode, job_id: str) -> bool:
    """Ask for it; return True if it has failed for good, or so often that nobody should wait for it."""
    reason = f"job {job_id} goes on"
    action = PlugDevices(
        subject=node.name, generation=node.generation, reason=reason, host=node.host, job_id=job_id
    )
    progress, failed = builder.do(action), builder.operation(action)
    if failed is None or not failed.problem:
        return False
    builder.refuse(node.name, Goal.DEVICES, call_failed(failed.problem), job_id)
    return progress is Progress.FINAL or failed.attempts >= _TRIES


def lacking(builder: PlanBuilder, name: str, claim: HostAllocation) -> Reason | None:
    """Return which devices are still awaited on a node where a job begins, if any are.

    A hook holds the job's start until then: its programs find their devices at once.
    """
    world, devices = builder.world, builder.policies.devices
    node, known = world.managed.get(name), world.jobs.get(claim.job_id)
    if node is None or node.phase not in (Phase.READY, Phase.DRAINING):
        return None  # nothing is plugged there now
    if known is not None and devices.asked(known) is None:
        return None
    # A hook knows an array task or a component of a heterogeneous job by its raw number only.
    here = [j for j in world.jobs_on(name) if claim.job_id in (j.id, str(j.raw_id))]
    if not here:
        builder.watch(name)
        builder.awaits(Topic.READING)
        seen = world.node_read_s(name) > claim.since_s  # then it has left already
        return None if seen else because(Code.JOB_NOT_SHOWN, job=claim.job_id, node=name)
    rule, instance = devices.asked(here[0]), world.instances.get((node.host, name))
    there = instance is not None and instance.devices_of == here[0].id and instance.plugged
    if rule is None or there:
        return None
    return because(Code.NO_DEVICES_YET, node=name, device=rule.name, said=_said(world, name))


def _said(world: Picture, name: str) -> Words:
    problems = [o.problem for o in world.calls.all_of(name) if o.key.startswith(_CALLS)]
    return Words(problems[-1] if problems else "")


def _hold(builder: PlanBuilder, node: ManagedNode, job: Job, loan: DeviceLoan) -> None:
    left = room(builder.world, node.host, builder.policies)
    # The room of a job's own machines is theirs from the beginning, and this with it.
    needed_mb = 0 if node.job else loan.region_mb
    full = no_memory(builder.world, node.host, job.id, needed_mb, left)
    if full:
        builder.refuse(node.name, Goal.DEVICES, full, job.id)
        return
    wanted = Wanted(node.name, node.host, job.id, job.user, loan.functions, loan.regions)
    reason = f"job {job.id} asks for {loan.name}"
    action = HoldDevices(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        host=node.host,
        wanted=wanted,
        sharing=loan.sharing,
    )
    progress, failed = builder.do(action), builder.operation(action)
    if failed is not None and progress in (Progress.WAITING, Progress.FINAL):
        builder.refuse(node.name, Goal.DEVICES, call_failed(failed.problem), job.id)
