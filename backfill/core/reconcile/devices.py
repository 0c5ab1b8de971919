"""Devices of the job that is on a node: plugged in when it comes, given back when it has gone."""

from __future__ import annotations

from backfill.core.model.actions import HoldDevices, PlugDevices, ReturnDevices, UnplugDevices
from backfill.core.model.cluster import Job
from backfill.core.model.devices import Wanted
from backfill.core.model.fleet import Instance, InstanceState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, call_failed
from backfill.core.placement import no_memory, room
from backfill.core.policies.devices import DeviceRule
from backfill.core.queue import Topic
from backfill.core.reconcile.builder import PlanBuilder, Progress

_CALLS = tuple(f"{kind.__name__}:" for kind in (HoldDevices, PlugDevices))


_TRIES = 3  # to plug devices before a job goes on without


def see_to_devices(builder: PlanBuilder, node: ManagedNode, instance: Instance) -> None:
    """Level-triggered: what the instance holds is compared with what its jobs ask for."""
    holder = instance.devices_of
    if not holder and not builder.policies.devices.entries:
        return
    jobs = builder.world.jobs_on(node.name)
    if holder and all(job.id != holder for job in jobs):
        reason = f"job {holder} has left {node.name}"
        builder.do(
            ReturnDevices(subject=node.name, generation=node.generation, reason=reason, host=node.host)
        )
        return
    for job in jobs:
        rule = builder.policies.devices.asked(job)
        if rule is None or (job.id == holder and instance.plugged):
            continue
        if holder == job.id:
            _plug(builder, node, job.id)
            return
        if holder:
            held = because(Code.DEVICES_HELD, job=holder, host=node.host)
            builder.refuse(node.name, Goal.DEVICES, held, job.id)
            continue
        _hold(builder, node, job, rule)
        return


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
    if all(job.id != instance.devices_of for job in builder.world.jobs_on(node.name)):
        return True
    return _plug(builder, node, instance.devices_of)


def _plug(builder: PlanBuilder, node: ManagedNode, job_id: str) -> bool:
    """Ask for it; whether it has failed for good, or so often that nobody should wait for it."""
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
    problems = [o.problem for o in world.operations_of(name) if o.key.startswith(_CALLS)]
    said = Words(problems[-1] if problems else "")
    return because(Code.NO_DEVICES_YET, node=name, device=rule.name, said=said)


def _hold(builder: PlanBuilder, node: ManagedNode, job: Job, rule: DeviceRule) -> None:
    left = room(builder.world, node.host, builder.policies)
    full = no_memory(builder.world, node.host, job.id, rule.region_mb, left)
    if full:
        builder.refuse(node.name, Goal.DEVICES, full, job.id)
        return
    wanted = Wanted(node.name, node.host, job.id, job.user, rule.functions, rule.region_mb)
    reason = f"job {job.id} asks for {rule.name}"
    action = HoldDevices(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        host=node.host,
        wanted=wanted,
        sharing=rule.sharing,
    )
    progress, failed = builder.do(action), builder.operation(action)
    if failed is not None and progress in (Progress.WAITING, Progress.FINAL):
        builder.refuse(node.name, Goal.DEVICES, call_failed(failed.problem), job.id)
