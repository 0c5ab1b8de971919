"""Small inputs for replays with policies: a policy, and traces of a few lines."""

from __future__ import annotations

from collections.abc import Iterable

from backfill.core.model.fleet import Flavour, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.fitting import depth_for, everywhere, memory_for, node_names
from backfill.sim.replay.policy_replay import Setting
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import ModelJob, htc_pilot
from backfill.sim.traces.trace import JobTrace, TraceBuilder

KILL = Ladder((RungRule(Rung.REQUEUE),))
PAUSE = Ladder(
    (
        RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0),
        RungRule(Rung.SUSPEND, within_s=60.0, for_s=864_000.0),
        RungRule(Rung.REQUEUE),
    )
)
MOVE = Ladder(
    (
        RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0),
        RungRule(Rung.MIGRATE, within_s=60.0),
        RungRule(Rung.SUSPEND, within_s=60.0, for_s=864_000.0),
        RungRule(Rung.REQUEUE),
    )
)


def policy(ladder: Ladder = PAUSE, most: int = 100, per_host: int = 1) -> PolicySet:
    """Instances of one CPU; `most` of them, `per_host` on one node."""
    return PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
        hosts=(),
        ladder=ladder,
        scale=Scale(idle_s=60.0),
        limits=Limits(
            max_instances=most,
            max_per_host=per_host,
            boots_at_once=16,
            removals_at_once=64,
            creates_per_hour=100_000,
        ),
    )


def trace_of(jobs: Iterable[ModelJob]) -> JobTrace:
    builder = TraceBuilder()
    for number, job in enumerate(jobs, 1):
        builder.add(number, job.submit_s, job.run_s, job.processors, job.estimate_s)
    return builder.build()


def setting(
    high: Iterable[ModelJob],
    cluster: Cluster,
    policies: PolicySet,
    low: int | Iterable[ModelJob] = 0,
    costs: ReplayCosts | None = None,
    saves: tuple[float, float] = (0.0, 0.0),
    seed: int = 1,
) -> tuple[Setting, PolicySet]:
    """The input, and the policy with every node as a host. `low`: jobs, or how many of HTC."""
    policies = everywhere(policies, cluster)
    if isinstance(low, int):
        low = htc_pilot(7, low, 1.0, backlog=low) if low else ()
    backlog = trace_of(low)
    return (
        Setting(
            cluster,
            trace_of(high),
            backlog if len(backlog) else None,
            node_names(policies, cluster),
            memory_for(policies, cluster),
            depth_for(policies, cluster),
            *saves,
            costs if costs is not None else ReplayCosts(),
            seed,
        ),
        policies,
    )
