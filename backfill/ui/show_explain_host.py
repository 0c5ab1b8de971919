"""Why a host carries instances, or does not."""

from __future__ import annotations

from backfill.core.quantities import counted
from backfill.ui import wording
from backfill.ui.client import Answer
from backfill.ui.show_hosts import state_of
from backfill.ui.show_picture import Entry, Explanation, Picture, refused

_HEADLINES = {
    "unreachable": "cannot be reached",
    "closed": "was closed by hand",
    "given": "belongs to {jobs} now",
    "open": "is open for instances",
}


def explain_host(answer: Answer, picture: Picture) -> Explanation:
    """The host of `answer`."""
    host: Entry = answer["host"]
    name = host["name"]
    state, why = state_of(host)
    jobs = wording.takers(host)
    made = Explanation(f"{name} {_HEADLINES[state].format(jobs=wording.jobs(jobs))}")
    made.add("why", why)
    made.add("offers", f"{counted(host['cpus'], 'CPU')} and {host['memory_mb']} MB")
    made.add("Slurm", _slurm(host, answer["slurm"]))
    made.add("instances", *_instances(host, picture))
    made.add("promised", *_claims(name, picture))
    refused(made, answer["refusals"], name)
    made.add("change", _change(name, state, jobs))
    return made


def _slurm(host: Entry, state: str | None) -> str:
    if host["node"] is None:
        return "does not know it: it is no Slurm node itself"
    if state is None:
        return f"has not shown its node {host['node']}"
    return f"shows it as {state}"


def _instances(host: Entry, picture: Picture) -> list[str]:
    phases: dict[str, list[str]] = {}
    for node in picture.nodes_on(host["name"]):
        phases.setdefault(node["phase"], []).append(node["name"])
    told = [f"{wording.folded(names)} {phase}" for phase, names in phases.items()]
    strangers = [n for n in host["instances"] if n not in picture.nodes]
    if strangers:
        told.append(f"{wording.folded(strangers)} without a node of ours")
    return told or ["none"]


def _claims(host: str, picture: Picture) -> list[str]:
    return [
        f"to job {c['job_id']}, whose start waits until the room is proven free"
        for c in picture.claims.values()
        if host in c["hosts"] and c["waiting"]
    ]


def _change(name: str, state: str, jobs: list[str]) -> str:
    match state:
        case "closed":
            return f"`backfill evict {name} --undo` opens it again"
        case "given":
            return f"instances come back when {wording.jobs(jobs)} has left it"
        case "unreachable":
            return "nothing is begun on it until its hypervisor answers again"
        case _:
            return f"a high-priority job takes it at once; `backfill evict {name}` closes it"
