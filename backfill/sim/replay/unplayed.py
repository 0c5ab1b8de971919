"""Which conditions of a policy file no job of a replay can meet, because its traces do not tell of them."""

from __future__ import annotations

from collections.abc import Iterator

from backfill.config.model import Config, DaemonSettings
from backfill.core.policies.workloads import Workload
from backfill.core.policy import Priorities
from backfill.sim.traces.trace import JobTrace

_REMEDY = "give them as a dump of `sacct -P` with the columns User,Account,QOS,Partition"


def unplayed(name: str, config: Config, low: JobTrace | None) -> Iterator[str]:
    """Yield what people must know of the policy called `name`, a sentence each."""
    policies = config.policies
    if low is not None and len(low):
        untold = list(_untold(config, low))
        if untold:
            what = f"{', '.join(untold)}: the low-priority jobs do not tell it"
            yield f"not replayed of {name}: {what}; {_REMEDY}"
        never = [
            f"workloads[{index}] ({', '.join(keys)})"
            for index, one in enumerate(policies.workloads.entries)
            if (keys := _never(one))
        ]
        if never:
            yield (
                f"not replayed of {name}: {', '.join(never)}: replayed jobs have no names and no comments, "
                "and run on one node each"
            )
    if policies.supply.on:
        yield f"not replayed of {name}: supply: no pool sends pilots here"
    if config.daemon.host_poll_s != DaemonSettings().host_poll_s:
        yield f"not replayed of {name}: daemon.host_poll_s: a change on a host is seen at once here"


def untold_qos(priorities: Priorities, trace: JobTrace) -> tuple[str, ...]:
    """Say where low-priority jobs of a trace cannot be told by the QOS that makes them so."""
    if not priorities.low_qos or _tells(trace, "qos"):
        return ()
    return ("not replayed: priorities.low_qos: the trace tells no QOS",)


def _untold(config: Config, low: JobTrace) -> Iterator[str]:
    """Keys that ask for what no low-priority job tells."""
    policies = config.policies
    unknown = {key for key in ("account", "user", "qos", "partition") if not _tells(low, key)}
    for index, quota in enumerate(policies.quotas.ceilings):
        wanted = {"account": quota.account, "user": quota.user, "qos": quota.qos}
        keys = [key for key, value in wanted.items() if value and key in unknown]
        if keys:
            yield f"quotas[{index}] ({', '.join(keys)})"
    for index, one in enumerate(policies.workloads.entries):
        asked = {"accounts": "account", "users": "user", "qos": "qos"}
        if policies.priorities.low[0] not in one.partitions:
            asked["partitions"] = "partition"
        keys = [key for key, told in asked.items() if getattr(one, key) and told in unknown]
        if keys:
            yield f"workloads[{index}] ({', '.join(keys)})"


def _never(one: Workload) -> list[str]:
    return [
        key
        for key, wanted in (
            ("job_name", one.job_name),
            ("comment", one.comment),
            ("min_nodes", one.min_nodes > 1),
        )
        if wanted
    ]


def _tells(trace: JobTrace, what: str) -> bool:
    return any(getattr(told, what) for told in set(trace.details or ()))
