"""`backfill status`: the cluster on one page."""

from __future__ import annotations

import argparse
from typing import Any

from backfill.core.quantities import counted
from backfill.ui import wording
from backfill.ui.client import Answer, Client, add_reading, present
from backfill.ui.terminal import age, emphasis, local_time

_MOST_REFUSALS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "status", _show)


def _show(answer: Answer, client: Client) -> None:
    now_s = answer["now_s"]
    print(emphasis(f"cluster {answer['cluster']}") + f" at {local_time(now_s)}")
    if answer["clock"]:
        print(emphasis(f"clock: {answer['clock']}", "33"))
    print(answer["sentence"])
    print()
    waiting = answer["low_priority_jobs_waiting"]
    print(f"queue     {counted(waiting, 'low-priority job')} waiting")
    phases = [f"{n} {phase}" for phase, n in answer["phases"].items() if n]
    print(f"nodes     {', '.join(phases) or 'none'}")
    print(f"policy    {_policy(answer['policy'], now_s)}")
    print(f"pictures  {'; '.join(_pictures(answer['sources'], now_s)) or 'nothing was read yet'}")
    _section("hooks", [emphasis(text, "31") for text in _unheard(answer)])
    _section("given away", [_claim(c, now_s) for c in answer["claims"]])
    _section("under way", [wording.operation(o, now_s) for o in answer["operations"]])
    refusals = answer["refusals"]
    lines = [wording.refusal(r) for r in refusals[:_MOST_REFUSALS]]
    if len(refusals) > _MOST_REFUSALS:
        lines.append(f"and {len(refusals) - _MOST_REFUSALS} more: backfill plan")
    _section("not done", lines)


def _policy(policy: dict[str, Any], now_s: float) -> str:
    """Which file is in force, and why its present state is not."""
    text = policy["source"] or "not from a file"
    if policy["loaded_s"]:
        text += f", in force for {age(now_s - policy['loaded_s'])}"
    if policy["problems"]:
        text += emphasis(f"; not so what stands there now: {policy['problems'][0]}", "31")
    return text


def _section(title: str, lines: list[str]) -> None:
    if lines:
        print()
        print(emphasis(title))
        for line in lines:
            print(f"  {line}")


def _pictures(sources: dict[str, Any], now_s: float) -> list[str]:
    """How old our knowledge is; hosts of the same age are told together."""
    same: dict[str, list[str]] = {}
    for name, source in sources.items():
        same.setdefault(_freshness(source, now_s), []).append(name)
    return [f"{wording.folded(names)} {text}" for text, names in same.items()]


def _freshness(source: dict[str, Any], now_s: float) -> str:
    seen_s = source["seen_s"]
    text = f"{age(now_s - seen_s)} old" if seen_s else "never read"
    if source["problem"]:
        return emphasis(f"{text}, cannot be read now: {source['problem']}", "31")
    return text


def _unheard(answer: Answer) -> list[str]:
    """Hooks that do not count: hosts are not given back through them."""
    return [wording.unheard(u, answer["now_s"]) for u in answer.get("hooks_not_believed", ())]


def _claim(claim: dict[str, Any], now_s: float) -> str:
    what = "the room" if claim["hosts"] else "its devices"
    waits = f"; its start waits for {what}" if claim["waiting"] else ""
    length = age(now_s - claim["since_s"])
    given = wording.folded(claim["hosts"] or claim["nodes"])
    return f"{given} to job {claim['job_id']} for {length}{waits}"
