"""Why a job waits, stands still or runs where it does."""

from __future__ import annotations

from backfill.core.quantities import counted
from backfill.ui import wording
from backfill.ui.client import Answer
from backfill.ui.show_picture import Entry, Explanation, Picture, refused
from backfill.ui.terminal import age

_ACTIVE = ("RUNNING", "SUSPENDED")


def explain_job(answer: Answer, picture: Picture) -> Explanation:
    """The job of `answer`."""
    job: Entry = answer["job"]
    ours = [picture.nodes[n] for n in job["nodes"] if n in picture.nodes]
    pushed = [h for h in picture.hosts.values() if h["node"] in job["nodes"]]
    made = Explanation(_headline(job, picture, bool(ours)))
    made.add("why", *_why(job, ours, picture))
    made.add("place", *_places(job, ours))
    made.add("room", *_room(pushed, picture))
    claim = picture.claims.get(job["id"])
    if claim is not None and claim["waiting"]:
        hosts, nodes = wording.folded(claim["hosts"]), wording.folded(claim["nodes"])
        awaited = f"the proof that {hosts} is free" if claim["hosts"] else f"devices in {nodes}"
        made.add("awaited", awaited)
    if job["state"] == "PENDING":
        made.add("awaited", *_coming(picture))
        refused(made, answer["refusals"], f"job {job['id']}")
    made.add("change", _change(job, ours))
    if job["restarts"]:
        made.add("past", f"Slurm has restarted it {counted(job['restarts'], 'time')}")
    return made


def _headline(job: Entry, picture: Picture, ours: bool) -> str:
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
        case "SUSPENDED" if ours:
            return f"{name} stands still on {where}; nothing of it is lost"
        case "SUSPENDED":
            return f"{name} is suspended on {where}, and not by us"
        case state:
            return f"{name} has ended: {state}"


def _for(now_s: float, since_s: float) -> str:
    return age(now_s - since_s) if since_s else "some time"


def _why(job: Entry, ours: list[Entry], picture: Picture) -> list[str]:
    if job["state"] == "PENDING":
        return [f"Slurm says: {job['reason']}"] if job["reason"] not in ("", "None") else []
    if job["state"] == "SUSPENDED":
        return [f"its node {n['name']} is {n['phase']}: {n['reason']}" for n in ours]
    return []


def _places(job: Entry, ours: list[Entry]) -> list[str]:
    if job["state"] not in _ACTIVE:
        return []
    return [
        f"{n['name']} is a virtual node on {n['host']}, {n['phase']}; "
        f"`backfill explain {n['name']}` tells more"
        for n in ours
    ]


def _room(hosts: list[Entry], picture: Picture) -> list[str]:
    """What was pushed aside so that the job could have our hosts."""
    told = []
    for host in hosts:
        aside = [n["name"] for n in picture.nodes_on(host["name"]) if n["phase"] != "ready"]
        what = f"pushed aside for it: {wording.folded(aside)}" if aside else "no instance is there"
        told.append(f"{host['name']} is a host of ours; {what}")
    return told


def _coming(picture: Picture) -> list[str]:
    idle = [n["name"] for n in picture.nodes.values() if n["phase"] == "ready" and not n["jobs"]]
    booting = [n["name"] for n in picture.nodes.values() if n["phase"] == "booting"]
    told = []
    if idle:
        told.append(f"Slurm's next turn: {wording.folded(idle)}, ready and idle, may take it")
    if booting:
        told.append(f"{wording.folded(booting)}, booting now, may take it")
    return told or ["room: an instance, or nodes that Slurm frees"]


def _change(job: Entry, ours: list[Entry]) -> str:
    if job["state"] == "SUSPENDED" and ours:
        hosts = wording.folded(n["host"] for n in ours)
        return f"it goes on by itself when {hosts} is free, or elsewhere if the ladder says migrate"
    if job["state"] == "SUSPENDED":
        return "whoever suspended it has to resume it: scontrol resume"
    if job["state"] == "RUNNING" and ours:
        hosts = wording.folded(n["host"] for n in ours)
        return f"a high-priority job on {hosts} pushes it aside"
    return ""
