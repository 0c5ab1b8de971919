"""Migrates records of older programs: one function for each version that changed.

A journal is not written anew when a program takes it over: that would take minutes where it holds a
month. It notes up to which id an older program wrote, and each record is changed when it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Body = dict[str, Any]


def migrated(body: Body, version: int) -> Body:
    """Turn a record's body of this version of the format into the present one's."""
    for number, change in _STEPS:
        if version < number:
            body = change(body)
    return body


# --- version 3: the record of a node in parts, None for what has not come ------------------------


def _in_parts(body: Body) -> Body:
    match body.get("t"):
        case "NodeManaged" | "SetNode":
            return {**body, "node": _node(body["node"])}
        case "FleetSet" | "SetFleet":
            return {**body, "fleet": _fleet(body["fleet"])}
        case "ThawInstance" | "DeleteInstance" if "held" in body:
            return {**body, "held": [_held(job) for job in body["held"]]}
        case _:
            return body


_SAME = (
    *("name", "address", "host", "generation", "since_s", "created_s", "reason"),
    *("fail", "evictions", "fleet", "image", "devices"),
)


def _node(flat: Body) -> Body:
    """Turn the record of a node, which had all its fields beside one another."""
    phase = "parked" if flat["phase"] == "displaced" else flat["phase"]
    made: Body = {name: flat[name] for name in _SAME if name in flat}
    made |= {
        "phase": phase,
        "held": [_held(job) for job in flat.get("held", ())],
        "stop": _stop(flat, phase),
        "check": _check(flat, phase),
        "proof": {
            "proven_s": _time(flat, "proven_s"),
            "first_s": _time(flat, "proof_s"),
            "report": flat.get("report"),
            "woken_s": _time(flat, "woken_s"),
        },
        "order": _order(flat),
        "ordered_s": _time(flat, "checkpoint_s"),
        "retry": {
            "failures": flat.get("failures", 0),
            "returns": flat.get("returns", 0),
            "not_before_s": _time(flat, "not_before_s"),
            "cleared": False,
            "blamed": 0,
        },
        "suspicion": _suspicion(flat.get("suspicion")),
        "condemned": _condemned(flat),
        "unconfirmed": flat.get("unconfirmed") or None,
        "idle_since_s": _time(flat, "idle_since_s"),
        "flavour": None,
        "job": "",
        "inside": False,
        "stood": [],
        "saved": None,
        "left": "",
        "found": False,
        "setbacks": [],
    }
    return made


def _time(flat: Body, name: str) -> float | None:
    """0 stood for a time that had not come."""
    at_s: float | None = flat.get(name)
    return at_s or None


def _stop(flat: Body, phase: str) -> Body | None:
    """Its fields were kept when a stop was over."""
    if phase not in ("draining", "evicting", "throttled", "parked", "moving", "returning", "removing"):
        return None
    rung_s, drained_s = _time(flat, "rung_since_s"), _time(flat, "drained_s")
    if phase == "removing" and rung_s is None and drained_s is None:
        return None  # it was removed without one
    return {
        "since_s": flat["since_s"] if phase == "draining" or rung_s is None else rung_s,
        "rung": flat.get("rung", 0),
        "kind": flat.get("rung_kind"),
        "drained_s": drained_s,
        "doomed": flat.get("doomed", False),
        "target": flat.get("target") or None,
    }


def _check(flat: Body, phase: str) -> Body | None:
    suspended_s = _time(flat, "suspended_s")
    if suspended_s is None or phase in ("failed", "given-up"):
        return None
    return {
        "suspended_s": suspended_s,
        "probed_s": _time(flat, "probed_s"),
        "stuck_s": _time(flat, "stuck_s"),
        "kicked": flat.get("kicked", ()),
    }


def _order(flat: Body) -> Body | None:
    if not flat.get("checkpoint"):
        return None
    return {
        "id": flat["checkpoint"],
        "members": flat.get("checkpoint_of", ()),
        "restoring": flat.get("restoring", False),
        "put_back": flat.get("put_back", False),
        "kept": False,
        "failed": "",
    }


def _suspicion(known: Body | None) -> Body | None:
    return None if known is None else {**known, "read_s": _time(known, "read_s")}


def _condemned(flat: Body) -> Body | None:
    if not flat.get("condemned"):
        return None
    return {"cause": flat["condemned"], "since_s": flat.get("condemned_s", 0.0)}


def _held(job: Body) -> Body:
    words = job.get("refused")
    refused = None
    if words:
        refused = {"words": words, "since_s": job.get("stopped_s", 0.0), "limits": job.get("limits", ())}
    kept = {name: value for name, value in job.items() if name not in ("stopped_s", "limits")}
    return {**kept, "refused": refused}


def _fleet(fleet: Body) -> Body:
    times = ("begun_s", "all_begun_s", "ready_s", "over_s")
    return {**fleet, **{name: _time(fleet, name) for name in times}}


_STEPS: tuple[tuple[int, Callable[[Body], Body]], ...] = ((3, _in_parts),)
