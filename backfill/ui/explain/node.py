"""Explains why a virtual node is as it is: phase by phase, in words."""

from __future__ import annotations

from collections.abc import Callable

from backfill.core.model.quantities import counted
from backfill.core.model.refusals import Code
from backfill.ui import wording
from backfill.ui.client import Answer
from backfill.ui.explain.picture import Answers, Entry, Explanation, refused

_HEADLINES = {
    "booting": "is being made on {host}",
    "ready": "is at work on {host}",
    "draining": "on {host} takes no new jobs and goes when the last one has ended",
    "evicting": "is being pushed off {host}",
    "throttled": "keeps next to no CPU time on {host}, which is wanted",
    "parked": "stands still on {host} and its work waits",
    "moving": "is on its way from {host} to {target}",
    "returning": "is being brought back to work on {host}",
    "removing": "is being taken away from {host}",
    "failed": "has failed and is tried again later",
    "given-up": "has failed too often and was given up",
}
_KEPT = {
    "paused": "is paused: stopped, its memory kept on {host}",
    "suspended": "is suspended: its memory is on disk, {host} has its RAM back",
    "running": "is running on {host}",
    "migrating": "is being received by {host}",
    "building": "is being built on {host}",
    "off": "is off on {host}: its guest has ended",
    "crashed": "has crashed on {host}",
    "unknown": "is in a state on {host} that cannot be told: nothing is done with it until it can",
}


def explain_node(answer: Answer, picture: Answers) -> Explanation:
    """Tell of the node of `answer` (what `explain` was told about it)."""
    node: Entry = answer["node"]
    name, phase = node["name"], node["phase"]
    text = _HEADLINES.get(phase, f"is {phase} on {{host}}").format(**node)
    if phase == "ready" and not node["jobs"]:
        text = f"is ready on {node['host']} and idle"
    made = Explanation(f"{name} {text}, {wording.since(node['since_s'], picture.now_s)}")
    made.add("why", node["reason"])
    made.add("jobs", _jobs(node))
    for instance in picture.instances.get(name, []):
        form = _KEPT.get(instance["state"], f"is {instance['state']} on {{host}}")
        made.add("instance", form.format(**instance), instance["problem"])
    made.add("Slurm", _slurm(node))
    made.add("doing", *(wording.operation(o, picture.now_s) for o in answer["operations"]))
    made.add("awaited", *_AWAITED.get(phase, _nothing)(node, picture))
    refused(made, answer["refusals"], name)
    if any(r["code"] == Code.CLOSED.value and name in _subjects(r) for r in answer["refusals"]):
        made.add("change", f"`backfill evict {name} --undo` opens it again")
    made.add("change", *_CHANGES.get(phase, _nothing)(node, picture))
    if node["failures"]:
        made.add("past", f"{counted(node['failures'], 'failure')} since its last success")
    if node["evictions"]:
        made.add("past", f"pushed aside {counted(node['evictions'], 'time')} so far")
    return made


def _subjects(refusal: Entry) -> list[str]:
    """Whom the reason of a refusal names as its subject."""
    return [str(fact["value"]) for fact in refusal["facts"] if fact["name"] == "subject"]


def _jobs(node: Entry) -> str:
    if node["held"]:
        return "; ".join(_held(node))
    if node["jobs"]:
        return wording.jobs(node["jobs"])
    return ""


def _held(node: Entry) -> list[str]:
    """Say which jobs are held, by who suspended them in Slurm."""
    ours = [h["id"] for h in node["held"] if h.get("ours", True)]
    refused = [h for h in node["held"] if h.get("refused")]
    others = [h["id"] for h in node["held"] if not h.get("ours", True) and h not in refused]
    stop = "waits, suspended in Slurm, for another of its nodes"
    if node["phase"] != "ready":
        stop = "suspended in Slurm with the instance, nothing is lost"
    told = [f"{wording.jobs(ours)}: {stop}"] if ours else []
    told += [
        f"{wording.jobs([h['id']])}: Slurm will not suspend it ({h['refused']['words']})" for h in refused
    ]
    if others:
        told.append(f"{wording.jobs(others)}: suspended before by somebody else, who resumes it")
    return told


def _slurm(node: Entry) -> str:
    if not node["slurm_state"]:
        return "does not know the node (yet, or any more)"
    why = f" ({node['slurm_reason']})" if node["slurm_reason"] else ""
    return f"shows it as {node['slurm_state']}{why}"


def _nothing(node: Entry, picture: Answers) -> list[str]:
    return []


def _host_gate(host: str, picture: Answers) -> str:
    """Say what has to happen before `host` carries instances again, as a noun phrase."""
    known = picture.hosts.get(host)
    if known is None:
        return f"{host} to be seen"
    if not known["reachable"]:
        return f"{host} to be reachable again ({known['problem']})"
    if known["closed"]:
        return f"{host} to be opened again: `backfill evict {host} --undo`"
    jobs = wording.takers(known)
    if jobs:
        return f"the end of {wording.jobs(jobs)} on {host}"
    return ""


# --- what is awaited ---


def _booting(node: Entry, picture: Answers) -> list[str]:
    if node["name"] not in picture.instances:
        return ["its instance to appear on the hypervisor"]
    if not node["slurm_state"]:
        return ["Slurm to know the node"]
    return ["its guest to boot and register with Slurm; then its clock is set and jobs may come"]


def _ready(node: Entry, picture: Answers) -> list[str]:
    return [] if node["jobs"] else ["a job"]


def _draining(node: Entry, picture: Answers) -> list[str]:
    return [f"the end of {wording.jobs(node['jobs'])}"] if node["jobs"] else ["Slurm's drain"]


def _evicting(node: Entry, picture: Answers) -> list[str]:
    states = {i["state"] for i in picture.instances.get(node["name"], [])}
    if states & {"paused", "suspended"}:
        return ["Slurm to show the node drained and its jobs suspended"]
    return ["the hypervisor to stop the instance"]


def _parked(node: Entry, picture: Answers) -> list[str]:
    gate = _host_gate(node["host"], picture)
    return [gate or f"{node['host']} is open: it goes back there now"]


def _moving(node: Entry, picture: Answers) -> list[str]:
    return [f"the instance to arrive on {node['target']}"]


def _returning(node: Entry, picture: Answers) -> list[str]:
    steps = "instance running, clock set, slurmd registered, jobs resumed, drain lifted"
    return [f"one after the other: {steps}"]


def _removing(node: Entry, picture: Answers) -> list[str]:
    return ["the instance to be gone from its host and the node from Slurm"]


def _failed(node: Entry, picture: Answers) -> list[str]:
    return ["the end of the pause before the next try, and a job that needs an instance"]


_Rule = Callable[[Entry, Answers], list[str]]
_AWAITED: dict[str, _Rule] = {
    "booting": _booting,
    "ready": _ready,
    "draining": _draining,
    "evicting": _evicting,
    "throttled": _parked,
    "parked": _parked,
    "moving": _moving,
    "returning": _returning,
    "removing": _removing,
    "failed": _failed,
}


# --- what would change it ---


def _pushed(node: Entry) -> str:
    return f"a high-priority job on {node['host']}, or `backfill evict {node['name']}`, stops it"


def _change_booting(node: Entry, picture: Answers) -> list[str]:
    return ["registered within scale.boot_within_s it is ready, else it has failed", _pushed(node)]


def _change_ready(node: Entry, picture: Answers) -> list[str]:
    idle = "" if node["jobs"] else "idle for scale.idle_s it is removed, unless jobs wait for it"
    return [idle, _pushed(node)]


def _change_parked(node: Entry, picture: Answers) -> list[str]:
    return [
        f"it goes on where it stopped as soon as {node['host']} is free",
        "with `migrate` in the ladder it goes on elsewhere when another host has room",
        "when the time of its rung is over, the ladder's next rung follows",
    ]


def _change_throttled(node: Entry, picture: Answers) -> list[str]:
    return [
        f"it gets all of its CPUs back as soon as {node['host']} is free",
        "when the time of its rung is over, the ladder's next rung follows",
    ]


def _change_failed(node: Entry, picture: Answers) -> list[str]:
    return [f"`backfill retry {node['name']}` forgets the failures and the pause"]


def _change_given_up(node: Entry, picture: Answers) -> list[str]:
    own = "a name that keeps failing while others become ready is not tried again by itself"
    return [
        f"it is tried again once other nodes become ready, or after a long rest; {own}",
        f"remove the cause, then `backfill retry {node['name']}` frees its name at once",
    ]


_CHANGES: dict[str, _Rule] = {
    "booting": _change_booting,
    "ready": _change_ready,
    "throttled": _change_throttled,
    "parked": _change_parked,
    "failed": _change_failed,
    "given-up": _change_given_up,
}
