"""Parents of instant clones: made ahead where the catalogue wants them, given up for a job."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.actions import CancelParents, MakeParent
from backfill.core.admission import hour_over_s
from backfill.core.guards import may_create
from backfill.core.placement import candidates
from backfill.core.plan_builder import PlanBuilder, Progress
from backfill.core.policies.cloning import Choice
from backfill.core.queue import Topic
from backfill.core.refusals import Goal, call_failed
from backfill.core.sentences import sentence
from backfill.core.steps.taken import why_taken


def hosts_with_parents(builder: PlanBuilder) -> Sequence[str]:
    """The hosts that have to be looked at: none of them where nobody clones in this way."""
    policies, instant = builder.policies, (Choice.INSTANT, Choice.AUTO)
    rules = policies.environments.rules
    wanted = policies.cloning.method in instant or any(
        rule.warm_parents or rule.method in instant for rule in rules
    )
    return tuple(policies.hosts) if wanted or builder.world.fleets else ()


def step_parents(builder: PlanBuilder, host: str) -> None:
    """Give up what is being made on a host that is wanted; make what is missing elsewhere."""
    world = builder.world
    known = world.hosts.get(host)
    if known is None or known.parents is None or not known.reachable:
        return
    taken = why_taken(builder, host)
    if taken:
        if world.parents_starting(host):
            builder.do(CancelParents(host, 0, sentence(taken)))
        return
    flavour = builder.policies.instances.flavour
    for rule in builder.policies.environments.rules:
        if rule.warm_parents and not known.has_parent(rule.name, flavour):
            _make(builder, host, rule.name)
            return  # one at a time on a host


def _make(builder: PlanBuilder, host: str, image: str) -> None:
    """A parent is made where, and when, an instance could be."""
    world, policies = builder.world, builder.policies
    if world.parents_starting(host):
        return
    begun = sum(world.parents_starting(other) for other in policies.hosts)
    limit = may_create(world, policies.limits, begun)
    if not limit:
        builder.awaits(Topic.ROOM)
        rooms, why_not = candidates(world, policies, policies.gaps.boot_pays_s)
        limit = None if any(name == host for name, _ in rooms) else why_not[host]
    if limit:
        builder.awaits(Topic.BOOTS)
        builder.wake_at(hour_over_s(builder))
        builder.refuse(host, Goal.PARENT, limit, image)
        return
    action = MakeParent(host, 0, f"{image} keeps one ready", image, policies.instances.flavour)
    failed = builder.operation(action)
    if failed is not None:
        # As long as after as many failures of one instance: each try boots a guest.
        again_s = failed.since_s + policies.scale.backoff_s(failed.attempts)
        if builder.now_s < again_s:
            builder.refuse(host, Goal.PARENT, call_failed(failed.problem), image)
            builder.wake_at(again_s)
            return
    if builder.do(action) is Progress.FINAL and failed is not None:
        builder.refuse(host, Goal.PARENT, call_failed(failed.problem), image)
