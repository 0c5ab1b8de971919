"""How far a fleet is, and what it waits for."""

from __future__ import annotations

from backfill.core.fleets import FleetState
from backfill.ui import wording
from backfill.ui.client import Answer
from backfill.ui.show_picture import Entry, Explanation, Picture

_CHANGE = {
    FleetState.WAITING: "it begins when there is room for all of it; `{delete}` ends the order",
    FleetState.MAKING: "when one member is given up all go again; `{delete}` ends the order",
    FleetState.READY: "its members stay, idle or not, until `{delete}`",
    FleetState.LEAVING: "members with jobs go when those have ended",
}


def explain_fleet(answer: Answer, picture: Picture) -> Explanation:
    """The fleet of `answer`."""
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
    made.add("change", _CHANGE.get(fleet["state"], "").format(delete=delete))
    return made
