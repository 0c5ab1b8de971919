"""Devices of the job that is on a node: plugged in when it comes, given back when it has gone."""

from __future__ import annotations

from backfill.core.actions import HoldDevices, ReturnDevices
from backfill.core.cluster import Job
from backfill.core.devices import Wanted
from backfill.core.draft import Draft, Progress
from backfill.core.fleet import Instance
from backfill.core.lifecycle import ManagedNode
from backfill.core.policies.devices import DeviceRule


def see_to_devices(draft: Draft, node: ManagedNode, instance: Instance) -> None:
    """Level-triggered: what the instance holds is compared with what its jobs ask for."""
    holder = instance.devices_of
    if not holder and not draft.policies.devices.entries:
        return
    jobs = draft.world.jobs_on(node.name)
    if holder and all(job.id != holder for job in jobs):
        reason = f"job {holder} has left {node.name}"
        draft.do(ReturnDevices(node.name, node.generation, node.host, reason))
        return
    for job in jobs:
        rule = draft.policies.devices.asked(job)
        if rule is None or (job.id == holder and instance.plugged):
            continue
        if holder not in ("", job.id):
            draft.refuse(node.name, f"devices for job {job.id}", f"job {holder} holds them there")
            continue
        _hold(draft, node, job, rule)
        return


def _hold(draft: Draft, node: ManagedNode, job: Job, rule: DeviceRule) -> None:
    wanted = Wanted(node.name, node.host, job.id, job.user, rule.functions, rule.region_mb)
    reason = f"job {job.id} asks for {rule.name}"
    action = HoldDevices(node.name, node.generation, node.host, wanted, rule.sharing, reason)
    progress, failed = draft.do(action), draft.operation(action)
    if failed is not None and progress in (Progress.WAITING, Progress.FINAL):
        draft.refuse(node.name, f"devices for job {job.id}", failed.problem)
