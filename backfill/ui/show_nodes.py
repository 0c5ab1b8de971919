"""`backfill nodes [NODE]`: our virtual nodes, what they do and why."""

from __future__ import annotations

import argparse
from typing import Any

from backfill.core.quantities import parse_hostlist
from backfill.ui import wording
from backfill.ui.client import Answer, AskError, Client, add_reading, guarded, print_json
from backfill.ui.codes import NO, OK
from backfill.ui.terminal import age, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument("node", metavar="NODE", nargs="?", help="only these, such as vn[1-3]")
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""

    def work(client: Client) -> int:
        answer = (client.ask_exactly if args.json else client.ask)("nodes")
        if args.node:
            answer = chosen(answer, args.node)
        if args.json:
            print_json(answer)
        else:
            _show(answer, client)
            for node in answer["nodes"] if args.node else ():
                _show_proof(node)
        return OK

    return guarded(work, args)


def chosen(answer: Answer, hostlist: str) -> Answer:
    """The same answer with only these nodes. Raises AskError for one that is not there."""
    try:
        wanted = parse_hostlist(hostlist)
    except ValueError as error:
        raise AskError(str(error), NO) from error
    by_name = {n["name"]: n for n in answer["nodes"]}
    for name in wanted:
        if name not in by_name:
            raise AskError(wording.unknown("node of ours", name, by_name), NO)
    return {**answer, "nodes": [by_name[name] for name in wanted]}


def _show(answer: Answer, client: Client) -> None:
    nodes = answer["nodes"]
    if not nodes:
        print("there is no virtual node now; `backfill plan` tells what would make one")
        return
    now_s = client.ask("status")["now_s"]
    headers = ("NODE", "PHASE", "FOR", "HOST", "SLURM", "JOBS", "WHY")
    table(headers, [_row(n, now_s) for n in nodes])
    if len(nodes) > 1:
        print()
        print("; ".join(_by_phase(nodes)))


def _show_proof(node: dict[str, Any]) -> None:
    """What the node has proven, and what not."""
    print()
    if not node["checks"]:
        print(f"{node['name']} has not been asked to prove anything yet")
        return
    rows = [
        (c["name"], "yes" if c["ok"] else "NO", f"{c['took_s']:.3f} s", c["sentence"], c["remedy"])
        for c in node["checks"]
    ]
    table((f"{node['name']} PROVES", "HOLDS", "TOOK", "FOUND", "REMEDY"), rows)


def _row(node: dict[str, Any], now_s: float) -> tuple[str, ...]:
    move = f" to {node['target']}" if node["target"] else ""
    held = [h["id"] for h in node["held"]]
    return (
        node["name"],
        node["phase"],
        age(now_s - node["since_s"]),
        f"{node['host']}{move}",
        node["slurm_state"] or "-",
        ",".join(node["jobs"] or held) or "-",
        node["reason"],
    )


def _by_phase(nodes: list[dict[str, Any]]) -> list[str]:
    phases: dict[str, list[str]] = {}
    for node in nodes:
        phases.setdefault(node["phase"], []).append(node["name"])
    return [f"{len(names)} {phase}: {wording.folded(names)}" for phase, names in phases.items()]
