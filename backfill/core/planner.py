"""plan(world, policies) -> Plan: the one function that decides, live and in replay."""

from __future__ import annotations

from collections.abc import Callable

from backfill.core.actions import DeleteInstance
from backfill.core.draft import Draft
from backfill.core.fleet import Instance, InstanceState
from backfill.core.ledger import Claim
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.plan import AnswerClaim, EndClaim, Plan
from backfill.core.policy import PolicySet, Proof
from backfill.core.scaling import plan_scale
from backfill.core.steps.boot import step_booting
from backfill.core.steps.comeback import step_returning
from backfill.core.steps.displaced import step_displaced, step_moving
from backfill.core.steps.evict import step_evicting
from backfill.core.steps.ready import step_ready
from backfill.core.steps.remove import step_draining, step_removing
from backfill.core.world import World

# An instance with our tag of which no record exists is left alone for so long: its record may be
# on its way, when another daemon is just being replaced by this one.
_ORPHAN_AGE_S = 10.0

_OVER = (Phase.FAILED, Phase.GIVEN_UP)

# FAILED and GIVEN_UP have no step: nothing of them is left outside.
_STEPS: dict[Phase, Callable[[Draft, ManagedNode], None]] = {
    Phase.BOOTING: step_booting,
    Phase.READY: step_ready,
    Phase.DRAINING: step_draining,
    Phase.EVICTING: step_evicting,
    Phase.DISPLACED: step_displaced,
    Phase.MOVING: step_moving,
    Phase.RETURNING: step_returning,
    Phase.REMOVING: step_removing,
}


def plan(world: World, policies: PolicySet) -> Plan:
    """Decide what to do now. Pure: the same world and policies give the same plan."""
    draft = Draft(world, policies)
    _answer_claims(draft)
    for name in tuple(world.names):
        _step(draft, world.managed[name])
    _orphans(draft)
    plan_scale(draft)
    return draft.finish()


def _step(draft: Draft, node: ManagedNode) -> None:
    step = _STEPS.get(node.phase)
    if step is not None and node.host in draft.world.hosts:
        step(draft, node)


# --- claims ------------------------------------------------------------------------------------


def _answer_claims(draft: Draft) -> None:
    for claim in list(draft.world.claims.values()):
        if _over(draft, claim):
            draft.add(EndClaim(claim.job_id, "the job has left its nodes"))
            if claim.waiting:
                draft.add(AnswerClaim(claim.job_id, True, "the job has left its nodes"))
            continue
        if not claim.waiting:
            continue
        busy = [why for h in claim.hosts if (why := occupied(draft, h))]
        limit_s = claim.since_s + draft.policies.answer_within_s
        draft.wake_at(limit_s)
        if not busy:
            draft.add(AnswerClaim(claim.job_id, True, "no instance uses the hosts"))
        elif draft.now_s >= limit_s:
            draft.add(AnswerClaim(claim.job_id, False, "; ".join(busy)))


def _over(draft: Draft, claim: Claim) -> bool:
    """Whether Slurm, asked after the claim was made, shows that the job is not there (any more)."""
    world = draft.world
    nodes = [h.node for name in claim.hosts if (h := world.hosts.get(name)) and h.node]
    read_s = min((world.node_read_s(n) for n in nodes), default=world.node_read_s(""))
    if read_s <= claim.since_s:
        return False
    # A hook knows an array task or a component of a heterogeneous job by its raw number only.
    there = (job for node in nodes for job in world.jobs_on(node))
    return all(claim.job_id not in (job.id, str(job.raw_id)) for job in there)


def occupied(draft: Draft, host: str) -> str:
    """Say why the host's room is not proven free, or return an empty text."""
    if draft.world.arriving(host):
        return f"an instance is just coming to {host}"
    known = draft.world.hosts.get(host)
    if known is not None and not known.reachable and _may_carry(draft.world, host):
        return f"{host} cannot be reached: {known.problem}"
    for instance in draft.world.instances_on(host):
        if instance.occupies_cpu:
            return f"{instance.name} still runs on {host}"
        if draft.policies.proof is Proof.MEMORY and instance.occupies_memory:
            return f"{instance.name} still holds memory of {host}"
    return ""


def _may_carry(world: World, host: str) -> bool:
    """Whether an instance was seen there, or is there by our books."""
    # One that is being removed may still be there; one whose removal has ended is not.
    ours = (m for m in world.managed_on(host) if m.phase not in _OVER)
    return bool(world.instances_on(host)) or any(ours)


# --- orphans -----------------------------------------------------------------------------------


def _orphans(draft: Draft) -> None:
    """Instances with our tag that no record explains: adopt the present, destroy the stale."""
    if draft.blind:
        return
    for (host, name), instance in sorted(draft.world.instances.items()):
        if instance.state is InstanceState.MIGRATING:
            continue
        node = draft.world.managed.get(name)
        if node is None:
            _adopt(draft, instance)
        elif instance.tag.generation < node.generation or node.phase in _OVER:
            reason = f"a stale copy (generation {instance.tag.generation})"
            draft.do(DeleteInstance(name, instance.tag.generation, host, reason))


def _adopt(draft: Draft, instance: Instance) -> None:
    """Our journal was lost or is behind: take the instance back into our books."""
    first_s = draft.world.first_seen_s(instance.host, instance.name)
    if draft.now_s < first_s + _ORPHAN_AGE_S:
        draft.wake_at(first_s + _ORPHAN_AGE_S)
        return
    template = draft.policies.instances
    address = dict(zip(template.names, template.addresses, strict=False)).get(instance.name)
    known = instance.name in draft.world.nodes
    phase = Phase.EVICTING if draft.stopped(instance) else Phase.READY
    if address is None or not known:
        phase = Phase.REMOVING
    node = ManagedNode(
        instance.name,
        address or "",
        instance.host,
        instance.tag.generation,
        phase,
        draft.now_s,
        draft.now_s,
        reason="found with our tag and taken over",
    )
    draft.become(node, phase, node.reason)
