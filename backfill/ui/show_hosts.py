"""`backfill hosts`: the machines that carry instances."""

from __future__ import annotations

import argparse
from typing import Any

from backfill.ui import wording
from backfill.ui.client import Answer, Client, add_reading, present
from backfill.ui.terminal import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "hosts", _show)


def _show(answer: Answer, client: Client) -> None:
    hosts = answer["hosts"]
    if not hosts:
        print("no host has been seen yet; `backfill status` tells why")
        return
    headers = ("HOST", "STATE", "CPUS", "BUSY", "MEMORY", "JOBS", "INSTANCES", "WHY")
    table(headers, [_row(h) for h in hosts])


def _row(host: dict[str, Any]) -> tuple[str, ...]:
    state, why = state_of(host)
    return (
        host["name"],
        state,
        str(host["cpus"]),
        "-" if host["busy"] is None else f"{host['busy']:.0%}",
        f"{host['memory_mb']} MB",
        ",".join(wording.takers(host)) or "-",
        wording.folded(host["instances"]),
        why,
    )


def state_of(host: dict[str, Any]) -> tuple[str, str]:
    """One word for a host, and why it is so."""
    if not host["reachable"]:
        return "unreachable", host["problem"]
    if host["closed"]:
        return "closed", host["closed"]
    jobs = wording.takers(host)
    if jobs:
        return "given", f"Slurm gave it to {wording.jobs(jobs)}"
    return "open", ""
