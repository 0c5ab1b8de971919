"""What the daemon knows at this moment, as gauges: looked up only when somebody asks.

Every number of series here is bounded, whatever the cluster's size. Slurm is not asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING, TypeVar

from backfill.core.model.cluster import ENDED, JobState
from backfill.core.model.fleet import Host, InstanceState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.operations import Operation
from backfill.core.world import World
from backfill.engine.families import Body, Family, FamilyKind, Labels

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

_GAUGE, _COUNTER = FamilyKind.GAUGE, FamilyKind.COUNTER
_AT_ONCE = 512

NODES = Family("backfill_nodes", _GAUGE, "Our nodes, by phase.", ("phase",))
HOSTS = Family("backfill_hosts", _GAUGE, "Hosts, by whether they answer.", ("state",))
INSTANCES = Family("backfill_instances", _GAUGE, "Instances as hypervisors show them.", ("state",))
OPERATIONS = Family(
    "backfill_operations", _GAUGE, "Calls to the outside: running, or waiting for the next try.", ("state",)
)
OLDEST_CALL = Family(
    "backfill_operation_oldest_age_seconds", _GAUGE, "Age of the longest-running call; 0: none runs."
)
REFUSED_NOW = Family(
    "backfill_refused", _GAUGE, "What is currently refused, by the most frequent codes.", ("code",)
)
PICTURES = Family(
    "backfill_picture_age_seconds",
    _GAUGE,
    "Age of the daemon's knowledge: of slurm, and of the host with the oldest picture. +Inf: never read.",
    ("source",),
)
BARRED = Family(
    "backfill_barred", _GAUGE, "1 while the daemon only gives hosts back, for this reason.", ("by",)
)
CLAIMS = Family(
    "backfill_claims", _GAUGE, "Jobs that got hosts of ours; waiting: held by a hook.", ("state",)
)
JOBS_WAITING = Family("backfill_low_priority_jobs_waiting", _GAUGE, "Jobs for which instances could be made.")
JOURNAL = Family("backfill_journal_bytes", _GAUGE, "Size of the journal, looked up once a minute.")
INBOX = Family("backfill_inbox_messages", _GAUGE, "Messages that the daemon's thread has not yet taken.")
HOOKS_REFUSED = Family("backfill_hooks_not_believed", _COUNTER, "Hook calls that were not trusted.")
FORGOTTEN = Family(
    "backfill_planner_forgotten", _COUNTER, "Findings that only a full pass made: each one is a defect."
)
FAILED_STEPS = Family(
    "backfill_planner_failed",
    _COUNTER,
    "Looks at a node, host or the like that failed, so that it is left alone: each is a defect.",
)
POLICY = Family("backfill_policy_valid", _GAUGE, "0 while the current policy file is not in force.")
PILOTS = Family(
    "backfill_pilots", _GAUGE, "Pilots on demand that Slurm shows: waiting, or at work.", ("state",)
)
PAYLOADS = Family("backfill_pool_payloads_waiting", _GAUGE, "Payloads that wait, by the pool's latest word.")
UP = Family(
    "backfill_up", _GAUGE, "1 from a daemon; 0, with no other family, in a file written while none answered."
)
INFO = Family("backfill_info", _GAUGE, "Always 1; the label names the cluster.", ("cluster",))

_Item = TypeVar("_Item")
# So many codes of what is refused now are told apart; of all that ever was, every one is counted.
MOST_CODES = 32
_OTHER = ("other",)


def gauges(daemon: Daemon) -> Generator[None, None, list[Body]]:
    """Tell all of it; made in slices, between which the daemon's thread may do better things."""
    world, policies = daemon.world, daemon.cycle.policies
    claims = world.claims.values()
    kinds = world.job_index.kinds_pending(policies.priorities.low)
    found = [
        UP.gauges({(): 1.0}),
        INFO.gauges({(policies.cluster,): 1.0}),
        NODES.gauges({(phase.value,): float(world.fleet.count_in(phase)) for phase in Phase}),
        BARRED.gauges({(by,): float(by in world.barred) for by in ("journal", "lease")}),
        INBOX.gauges({(): float(daemon.inbox.qsize())}),
        POLICY.gauges({(): float(not daemon.policyfile.problems)}),
        HOOKS_REFUSED.told([["_total", {}, float(daemon.refused.total)]]),
        FORGOTTEN.told([["_total", {}, float(world.queue.forgotten)]]),
        FAILED_STEPS.told([["_total", {}, float(world.queue.failures)]]),
        CLAIMS.gauges(_by_one({"waiting": sum(c.waiting for c in claims), "all": len(claims)})),
        JOBS_WAITING.gauges({(): float(sum(len(alike) for _, alike in kinds))}),
        JOURNAL.gauges({} if daemon.journal_bytes is None else {(): float(daemon.journal_bytes)}),
    ]
    if policies.supply.on:
        found += _pilots(world, policies.supply.user)
    yield
    found.append((yield from _pictures(daemon)))
    reachable = yield from _counted(world.hosts.values(), _reachable)
    found.append(HOSTS.gauges({("reachable",): 0.0, ("unreachable",): 0.0} | reachable))
    states = yield from _counted(world.instances.values(), lambda one: one.state.value)
    found.append(INSTANCES.gauges({(state.value,): 0.0 for state in InstanceState} | states))
    codes = yield from _counted(daemon.cycle.last.refusals, lambda one: one.code.value)
    found.append(REFUSED_NOW.gauges(most_refused(codes)))
    calls = open_calls(world)
    running = yield from _counted(calls, lambda one: "running" if one.running else "waiting")
    found.append(OPERATIONS.gauges({("running",): 0.0, ("waiting",): 0.0} | running))
    oldest_s = min((call.since_s for call in calls if call.running), default=world.now_s)
    found.append(OLDEST_CALL.gauges({(): max(0.0, world.now_s - oldest_s)}))
    return found


def open_calls(world: World) -> list[Operation]:
    """Return those under way, and those to be tried again: not what a node that is over had failed at."""

    def over(operation: Operation) -> bool:
        node = world.managed.get(operation.key.split(":")[1])
        return node is not None and node.phase in (Phase.FAILED, Phase.GIVEN_UP)

    return [call for call in world.operations.values() if call.running or not over(call)]


def most_refused(codes: Mapping[Labels, float]) -> dict[Labels, float]:
    """Return the codes that are refused most, and the others as one: the number of series has a bound."""
    named = {labels: count for labels, count in codes.items() if labels != _OTHER}
    most = dict(sorted(named.items(), key=lambda one: (-one[1], one[0]))[:MOST_CODES])
    rest = sum(codes.values()) - sum(most.values())
    return most | ({_OTHER: rest} if rest else {})


def _pilots(world: World, user: str) -> Iterable[Body]:
    """Tell of pilots on demand, and of their pool once it has answered."""
    there = [job for job in world.pilots.of(user) if job.state not in ENDED]
    waiting = sum(job.state is JobState.PENDING for job in there)
    yield PILOTS.gauges(_by_one({"waiting": waiting, "at_work": len(there) - waiting}))
    pool = world.pilots.pool
    yield PAYLOADS.gauges({(): float(pool.idle)} if pool.seen_s else {})


def _reachable(host: Host) -> str:
    return "reachable" if host.reachable else "unreachable"


def _counted(
    items: Iterable[_Item], label: Callable[[_Item], str]
) -> Generator[None, None, dict[Labels, float]]:
    """Count by a label, so many at once."""
    found: Counter[Labels] = Counter()
    for number, item in enumerate([*items], 1):
        found[(label(item),)] += 1
        if number % _AT_ONCE == 0:
            yield
    return {labels: float(count) for labels, count in found.items()}


def _pictures(daemon: Daemon) -> Generator[None, None, Body]:
    """Tell the age of the picture of Slurm, and of the oldest one of a host."""
    world = daemon.world
    oldest_s = inf
    for number, host in enumerate([*daemon.outside.providers], 1):
        oldest_s = min(oldest_s, world.source_read_s(host))
        if number % _AT_ONCE == 0:
            yield
    ages = {"slurm": _age(world.now_s, world.source_read_s("slurm"))}
    if oldest_s < inf:
        ages["oldest_host"] = _age(world.now_s, oldest_s)
    return PICTURES.gauges(_by_one(ages))


def _by_one(values: Mapping[str, float]) -> dict[Labels, float]:
    """By the only label."""
    return {(label,): float(value) for label, value in values.items()}


def _age(now_s: float, read_s: float) -> float:
    return max(0.0, now_s - read_s) if read_s else inf
