"""Explains why a host, a job or a fleet is as it is."""

from __future__ import annotations

from backfill.core.model.fleet import FleetState
from backfill.core.model.quantities import counted
from backfill.ui import wording
from backfill.ui.client import Answer
from backfill.ui.explain.picture import Answers, Entry, Explanation, refused
from backfill.ui.terminal import age

_HEADLINES = {
    "unreachable": "cannot be reached",
    "closed": "was closed by hand",
    "given": "belongs to {jobs} now",
    "open": "is open for instances",
}


def explain_host(answer: Answer, picture: Answers) -> Explanation:
    """Tell of the host of `answer`."""
    host: Entry = answer["host"]
    name = host["name"]
    state, why = wording.host_state(host)
    jobs = wording.takers(host)
    made = Explanation(f"{name} {_HEADLINES[state].format(jobs=wording.jobs(jobs))}")
    made.add("why", why)
    made.add("offers", f"{counted(host['cpus'], 'CPU')} and {host['memory_mb']} MB")
    made.add("Slurm", _slurm(host, answer["slurm"]))
    made.add("instances", *_instances(host, picture))
    made.add("promised", *_claims(name, picture))
    refused(made, answer["refusals"], name)
    made.add("change", _host_change(name, state, jobs))
    return made


def _slurm(host: Entry, state: str | None) -> str:
    if host["node"] is None:
        return "does not know it: it is no Slurm node itself"
    if state is None:
        return f"has not shown its node {host['node']}"
    return f"shows it as {state}"


def _instances(host: Entry, picture: Answers) -> list[str]:
    phases: dict[str, list[str]] = {}
    for node in picture.nodes_on(host["name"]):
        phases.setdefault(node["phase"], []).append(node["name"])
    told = [f"{wording.folded(names)} {phase}" for phase, names in phases.items()]
    strangers = [n for n in host["instances"] if n not in picture.nodes]
    if strangers:
        told.append(f"{wording.folded(strangers)} without a node of ours")
    return told or ["none"]


def _claims(host: str, picture: Answers) -> list[str]:
    return [
        f"to job {c['job_id']}, whose start waits until the room is proven free"
        for c in picture.claims.values()
        if host in c["hosts"] and c["waiting"]
    ]


def _host_change(name: str, state: str, jobs: list[str]) -> str:
    match state:
        case "closed":
            return f"`backfill evict {name} --undo` opens it again"
        case "given":
            return f"instances come back when {wording.jobs(jobs)} has left it"
        case "unreachable":
            return "nothing is begun on it until its hypervisor answers again"
        case _:
            return f"a high-priority job takes it at once; `backfill evict {name}` closes it"


_ACTIVE = ("RUNNING", "SUSPENDED")
# Phases of a node whose jobs nobody has stopped.
_AT_WORK = ("ready", "draining")
# One that failed tells what others of its kind would.
_MOST_FAILED = 1


def explain_job(answer: Answer, picture: Answers) -> Explanation:
    """Tell of the job of `answer`."""
    job: Entry = answer["job"]
    ours = [picture.nodes[n] for n in job["nodes"] if n in picture.nodes]
    pushed = [h for h in picture.hosts.values() if h["node"] in job["nodes"]]
    by_us = job["state"] == "SUSPENDED" and _by_us(job, ours)
    made = Explanation(_headline(job, picture, by_us=by_us))
    own = answer.get("machines")
    made.add("why", *_why(job, ours, by_us=by_us, held_by_us=own is not None))
    made.add("machines", *_machines(own, picture))
    made.add("place", *_places(job, ours))
    made.add("room", *_room(pushed, picture))
    made.add("charged", *(_charged(job, ours, picture) if by_us else []))
    claim = picture.claims.get(job["id"])
    if claim is not None and claim["waiting"]:
        hosts, nodes = wording.folded(claim["hosts"]), wording.folded(claim["nodes"])
        awaited = f"the proof that {hosts} is free" if claim["hosts"] else f"devices in {nodes}"
        made.add("awaited", awaited)
    if job["state"] == "PENDING":
        if answer.get("for_instances", True) and not _is_held(job):
            made.add("awaited", *_coming(picture))
        refused(made, answer["refusals"], f"job {job['id']}")
    made.add("change", _job_change(job, ours, by_us=by_us))
    if job["restarts"]:
        made.add("past", f"Slurm has restarted it {counted(job['restarts'], 'time')}")
    return made


def _by_us(job: Entry, ours: list[Entry]) -> bool:
    """Return True if we have suspended it; a node that stands still has just done so, if it holds nothing."""
    held = [one for node in ours for one in node.get("held", ()) if one["id"] == job["id"]]
    if held:
        return any(one.get("ours", True) for one in held)
    return any(node["phase"] not in _AT_WORK for node in ours)


def _headline(job: Entry, picture: Answers, *, by_us: bool) -> str:
    name = f"job {job['id']}" + (f" ({job['name']})" if job["name"] else "")
    where = wording.folded(job["nodes"], none="no node")
    now_s = picture.now_s
    if "CONFIGURING" in job["flags"]:
        return f"{name} has {where} and its start waits for the hook"
    match job["state"]:
        case "PENDING":
            return f"{name} waits in partition {job['partition']} for {_for(now_s, job['submit_s'])}"
        case "RUNNING":
            return f"{name} runs on {where} for {_for(now_s, job['start_s'])}"
        case "SUSPENDED" if by_us:
            return f"{name} stands still on {where}; nothing of it is lost"
        case "SUSPENDED":
            return f"{name} is suspended on {where}, and not by us"
        case state:
            return f"{name} has ended: {state}"


def _for(now_s: float, since_s: float) -> str:
    return age(now_s - since_s) if since_s else "some time"


def _machines(own: Entry | None, picture: Answers) -> list[str]:
    """Say how far its own machines are, and what each step took."""
    if own is None:
        return []
    where = f" ({wording.folded(own['members'])})" if own["members"] else ""
    far = f"{own['what']}{where}: {own['state']} for {_for(picture.now_s, own['since_s'])}, {own['reason']}"
    took = [f"{name.replace('_', ' ')} {s:.1f} s" for name, s in own["steps_s"].items() if s is not None]
    use = own["use"]
    used = f"used so far: {use['instance_h']:.2f} instance hours, {use['core_h']:.2f} core hours"
    return [far, *([f"steps: {', '.join(took)}"] if took else []), *([used] if use["instance_h"] else [])]


def _why(job: Entry, ours: list[Entry], *, by_us: bool, held_by_us: bool) -> list[str]:
    if job["state"] == "PENDING":
        said = [f"Slurm says: {job['reason']}"] if job["reason"] not in ("", "None") else []
        return said if held_by_us else [*said, *_hold(job)]
    if job["state"] == "SUSPENDED":
        stopped = [n for n in ours if by_us or n["phase"] not in _AT_WORK]
        return [f"its node {n['name']} is {n['phase']}: {n['reason']}" for n in stopped]
    return []


def _reason(job: Entry) -> str:
    return str(job["reason"]).replace("_", " ").casefold()


def _is_held(job: Entry) -> bool:
    return _reason(job).startswith(("launch failed", "jobheld"))


def _hold(job: Entry) -> list[str]:
    """Say how a job goes on that Slurm holds: we release none, for we cannot know why it is held."""
    if not _is_held(job):
        return []
    who = "its owner or an admin" if _reason(job) == "jobhelduser" else "an admin"
    found = [f"Slurm starts it no more until {who} says so: scontrol release {job['id']}"]
    if _reason(job).startswith("launch failed"):
        found.insert(
            0,
            "its node could not start it, mostly for a Prolog of slurm.conf that the guest lacks: see "
            "libvirt.surroundings.no_ops, and the reason of the drained node in sinfo -R",
        )
    return found


def _charged(job: Entry, ours: list[Entry], picture: Answers) -> list[str]:
    """Say what a stop costs its owner: measured on 22.05 and 24.11, and no setting changes it."""
    known = [since_s for node in ours if (since_s := node.get("still_since_s")) is not None]
    if not known:
        return []
    still = age(picture.now_s - min(known))
    return [
        f"where Slurm reckons by fair-share, the {still} for which it has stood still are charged as if "
        "it had run; its time limit and its Elapsed leave them out"
    ]


def _places(job: Entry, ours: list[Entry]) -> list[str]:
    if job["state"] not in _ACTIVE:
        return []
    return [
        f"{n['name']} is a virtual node on {n['host']}, {n['phase']}; "
        f"`backfill explain {n['name']}` tells more"
        for n in ours
    ]


def _room(hosts: list[Entry], picture: Answers) -> list[str]:
    """Say what was pushed aside so that the job could have our hosts."""
    told = []
    for host in hosts:
        aside = [n["name"] for n in picture.nodes_on(host["name"]) if n["phase"] != "ready"]
        what = f"pushed aside for it: {wording.folded(aside)}" if aside else "no instance is there"
        told.append(f"{host['name']} is a host of ours; {what}")
    return told


def _coming(picture: Answers) -> list[str]:
    idle = [n["name"] for n in picture.nodes.values() if n["phase"] == "ready" and not n["jobs"]]
    booting = [n["name"] for n in picture.nodes.values() if n["phase"] == "booting"]
    told = []
    if idle:
        told.append(f"Slurm's next turn: {wording.folded(idle)}, ready and idle, may take it")
    if booting:
        told.append(f"{wording.folded(booting)}, booting now, may take it")
    if told:
        return told
    failed = [n for n in picture.nodes.values() if n["phase"] in ("failed", "given-up")]
    return [
        "room: an instance, or nodes that Slurm frees",
        *(f"{n['name']} was made and has failed: {n['reason']}" for n in failed[:_MOST_FAILED]),
    ]


def _job_change(job: Entry, ours: list[Entry], *, by_us: bool) -> str:
    if by_us:
        hosts = wording.folded(n["host"] for n in ours)
        return f"it goes on by itself when {hosts} is free, or elsewhere if the ladder says migrate"
    if job["state"] == "SUSPENDED":
        return f"whoever suspended it has to resume it: scontrol resume {job['id']}"
    if job["state"] == "RUNNING" and ours:
        hosts = wording.folded(n["host"] for n in ours)
        return f"a high-priority job on {hosts} pushes it aside"
    return ""


_FLEET_CHANGE = {
    FleetState.WAITING: "it begins when there is room for all of it; `{delete}` ends the order",
    FleetState.MAKING: "when one member is given up all go again; `{delete}` ends the order",
    FleetState.READY: "its members stay, idle or not, until `{delete}`",
    FleetState.LEAVING: "members with jobs go when those have ended",
}


def explain_fleet(answer: Answer, picture: Answers) -> Explanation:
    """Tell of the fleet of `answer`."""
    fleet: Entry = answer["fleet"]
    size = f"{fleet['ready']} of {fleet['size']} ready"
    made = Explanation(f"{fleet['id']} is {fleet['state']}: {size}")
    made.add("why", fleet["reason"])
    made.add("ordered", wording.since(fleet["ordered_s"], picture.now_s))
    phases: dict[str, list[str]] = {}
    for member in fleet["members"]:
        phases.setdefault(f"{member['phase']} on {member['host']}", []).append(member["name"])
    made.add("members", *(f"{wording.folded(names)} {how}" for how, names in phases.items()))
    delete = f"backfill fleet delete {fleet['id']}"
    made.add("change", _FLEET_CHANGE.get(fleet["state"], "").format(delete=delete))
    return made
