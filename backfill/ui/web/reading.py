"""The API's reading half: everything that the command line reads."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from backfill.core.model.lifecycle import Phase
from backfill.ui.client import Answer
from backfill.ui.web import answers
from backfill.ui.web.asker import Asks
from backfill.ui.web.replies import TROUBLE, Known, page, told, troubles

_FAILED = (Phase.FAILED.value, Phase.GIVEN_UP.value)

api = APIRouter(prefix="/api/v1", tags=["reading"], responses=TROUBLE)

Limit = Annotated[int, Query(ge=1, le=1000, description="At most so many entries.")]
After = Annotated[str, Query(max_length=256, description="Only entries behind this one: the `next` before.")]
TroubleFirst = Annotated[
    bool, Query(description="Those first that are in trouble: at most `limit`, and no further pages.")
]
Id = Annotated[int, Query(ge=0, le=1 << 62)]
First = Annotated[bool, Query(description="The first ones, and not the latest, where `after` names none.")]
Name = Annotated[str, Path(min_length=1, max_length=256)]


@api.get("/status", response_model=answers.StatusAnswer)
async def status(asker: Asks, known: Known = "") -> Response:
    """Tell the cluster on one page."""
    return told(await asker.shared("status"), known)


@api.get("/hosts", response_model=answers.HostsAnswer)
async def hosts(
    asker: Asks,
    limit: Limit = 1000,
    after: After = "",
    trouble_first: TroubleFirst = False,
    known: Known = "",
) -> Response:
    """List hosts in order of their names; those in trouble do not answer."""
    answer = await asker.shared("hosts")
    return told(_listed(answer, "hosts", _is_silent, after, limit, trouble_first=trouble_first), known)


@api.get("/nodes", response_model=answers.NodesAnswer)
async def nodes(
    asker: Asks,
    limit: Limit = 1000,
    after: After = "",
    trouble_first: TroubleFirst = False,
    known: Known = "",
) -> Response:
    """List our nodes in order of their names; those in trouble have failed or are given up."""
    answer = await asker.shared("nodes")
    return told(_listed(answer, "nodes", _has_failed, after, limit, trouble_first=trouble_first), known)


@api.get("/instances", response_model=answers.InstancesAnswer)
async def instances(asker: Asks, limit: Limit = 1000, after: After = "", known: Known = "") -> Response:
    """List instances in order of their hosts and names."""
    return told(page(await asker.shared("instances"), "instances", _by_host, after, limit), known)


@api.get("/operations", response_model=answers.OperationsAnswer)
async def operations(asker: Asks, limit: Limit = 1000, after: After = "", known: Known = "") -> Response:
    """List what is under way, in order of its keys."""
    answer = await asker.shared("status")
    found = {name: answer[name] for name in ("now_s", "operations")}
    return told(page(found, "operations", _by_key, after, limit), known)


@api.get("/mine", response_model=answers.MineAnswer)
async def mine(asker: Asks, known: Known = "") -> Response:
    """List the caller's own jobs on instances, or waiting for one: that takes no role."""
    return told(await asker.ask("mine"), known, every_s=1.0)  # how long a job stands still is told by now_s


@api.get("/plan", response_model=answers.PlanAnswer)
async def plan(asker: Asks, known: Known = "") -> Response:
    """Tell what would be begun now, and what is refused; nothing begins by asking."""
    return told(await asker.shared("plan"), known)


@api.get("/harvest", response_model=answers.HarvestAnswer)
async def harvest(asker: Asks, known: Known = "") -> Response:
    """Tell by hours what hosts had, what their own jobs took of it, and what instances worked and lost."""
    return told(await asker.shared("harvest"), known, every_s=900.0)  # hours begin and end, worked or not


@api.get("/fleets", response_model=answers.FleetsAnswer)
async def fleets(asker: Asks, known: Known = "") -> Response:
    """List the orders for fleets, the oldest first."""
    return told(await asker.shared("fleets"), known)


@api.get("/checkpoints", response_model=answers.CheckpointsAnswer)
async def checkpoints(asker: Asks, limit: Limit = 1000, after: After = "", known: Known = "") -> Response:
    """List the checkpoints that are kept, as their files are now."""
    return told(page(await asker.shared("checkpoints"), "checkpoints", _by_id, after, limit), known)


@api.get("/errands/{name}", response_model=answers.ErrandAnswer, responses=troubles(_404="There is none."))
async def errand(asker: Asks, name: Name, known: Known = "") -> Response:
    """Tell how far something that takes minutes has come, and what came of it."""
    return told(await asker.ask("errand", id=name), known)


@api.get("/metrics", response_model=answers.MetricsAnswer)
async def metrics(asker: Asks) -> Response:
    """Tell what /metrics tells, as JSON."""
    found = await asker.shared("metrics")
    return told({"families": [_finite(family) for family in found["families"]]})


@api.get("/events", response_model=answers.EventsAnswer)
async def events(
    asker: Asks, after: Id = 0, before: Id = 0, first: First = False, limit: Limit = 100, known: Known = ""
) -> Response:
    """List events of the journal: those behind `after`, or the first, or the latest; before `before`."""
    asked = await asker.shared("events", after=after, before=before, first=first, limit=limit)
    return told(asked, known)


@api.get(
    "/explain/{subject}", response_model=answers.ExplainAnswer, responses=troubles(_404="It was never seen.")
)
async def explain(asker: Asks, subject: Name, known: Known = "") -> Response:
    """Tell why a node, host, job or fleet is as it is, and its story."""
    return told(await asker.shared("explain", subject=subject), known)


def _finite(family: dict[str, Any]) -> dict[str, Any]:
    """Write what JSON has no number for as Prometheus writes it."""
    samples = [(suffix, labels, _number(value)) for suffix, labels, value in family["samples"]]
    return {**family, "samples": samples}


def _number(value: float) -> float | str:
    return value if isfinite(value) else f"{value:+}".replace("inf", "Inf")


def _by_name(entry: dict[str, Any]) -> str:
    return str(entry["name"])


def _is_silent(host: dict[str, Any]) -> bool:
    return not host["reachable"]


def _has_failed(node: dict[str, Any]) -> bool:
    return node["phase"] in _FAILED


def _listed(
    answer: Answer,
    name: str,
    in_trouble: Callable[[dict[str, Any]], bool],
    after: str,
    limit: int,
    *,
    trouble_first: bool,
) -> Answer:
    """Return a page by names, or the first of those in trouble and the others; and how many are in trouble.

    Who is in trouble changes between two pages, so that only names tell where to go on.
    """
    if trouble_first and after:
        problem = {"loc": ("query", "after"), "msg": "it goes on by names; leave trouble_first out"}
        raise RequestValidationError([problem])
    found = page(answer, name, _by_name, after, limit)
    if trouble_first:
        ranked = sorted(answer[name], key=lambda one: (not in_trouble(one), one["name"]))
        found |= {name: ranked[:limit], "next": None}
    return {**found, "in_trouble": sum(map(in_trouble, answer[name]))}


def _by_key(entry: dict[str, Any]) -> str:
    return str(entry["key"])


def _by_id(entry: dict[str, Any]) -> str:
    return f"{entry['id']}/{entry['name']}"


def _by_host(entry: dict[str, Any]) -> str:
    return f"{entry['host']}/{entry['name']}"
