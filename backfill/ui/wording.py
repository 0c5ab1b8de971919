"""Small phrases that several views share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from backfill.core.model.quantities import counted, fold_hostlist
from backfill.ui.parser import did_you_mean
from backfill.ui.terminal import age, local_time

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")


def folded(names: Iterable[str], none: str = "-") -> str:
    """Names of nodes or hosts in Slurm's short form."""
    return fold_hostlist(names) or none


def jobs(ids: Sequence[str]) -> str:
    """`job 7`, `jobs 7 and 9`, `jobs 7, 9 and 12`."""
    if len(ids) <= 1:
        return f"job {ids[0]}" if ids else "no job"
    return f"jobs {', '.join(ids[:-1])} and {ids[-1]}"


def takers(host: dict[str, Any]) -> list[str]:
    """Return the jobs that have the host."""
    return list(host.get("given_to", ()))


def host_state(host: dict[str, Any]) -> tuple[str, str]:
    """One word for a host, and why it is so."""
    if not host["reachable"]:
        return "unreachable", host["problem"]
    if host["closed"]:
        return "closed", host["closed"]
    if given := takers(host):
        return "given", f"Slurm gave it to {jobs(given)}"
    return "open", ""


def operation(entry: dict[str, Any], now_s: float) -> str:
    """Say in one sentence that an action is under way, or that it failed and waits."""
    kind, name, *rest = str(entry["key"]).split(":")
    what = f"{_WORDS.sub(' ', kind).lower()} {name}"
    if len(rest) > 1:
        what += f" (job {rest[1]})" if kind.endswith("Job") else f" (to {rest[1]})"
    if entry["running"]:
        return f"{what}: under way for {age(now_s - entry['since_s'])}"
    again = "it is not tried again"
    if not entry["final"]:
        again = f"next try in {age(entry['not_before_s'] - now_s)}"
    return f"{what} failed ({counted(entry['attempts'], 'attempt')}; {again}): {entry['problem']}"


def since(at_s: float, now_s: float) -> str:
    """`for 2m03s (since 2025-01-31T12:00:01.120+01:00)`."""
    return f"for {age(now_s - at_s)} (since {local_time(at_s)})"


def refusal(entry: dict[str, Any]) -> str:
    """`bm1: no new instance: bm1 was given to job 7`."""
    return f"{entry['subject']}: {not_done(entry)}"


def not_done(entry: dict[str, Any]) -> str:
    """`no new instance: bm1 was given to job 7`."""
    what = re.sub(r"^an? ", "", str(entry["what"]))
    return f"no {what}: {entry['reason']}"


def unheard(entry: dict[str, Any], now_s: float) -> str:
    """Hooks that were not believed, and what to do."""
    often = counted(entry["count"], "call")
    last = f"the last {age(now_s - entry['last_s'])} ago"
    return (
        f"{entry['why']}: {often}, {last}, and no host was given back for them; "
        "`backfill daemon --config FILE --check` says what is wrong"
    )


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that nobody knows a name, and which is the nearest that somebody knows."""
    names = sorted(known)
    hint = did_you_mean(name, names)
    if not hint:
        hint = f"; there are {folded(names)}" if names else "; there is none yet"
    return f"there is no {kind} '{name}'{hint}"
