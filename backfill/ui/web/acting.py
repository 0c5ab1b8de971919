"""The API's acting half: what an operator or an admin orders. The daemon decides who may."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Header, Path, Request
from fastapi.responses import Response

from backfill.config import check_text
from backfill.engine.errands import MOST_TEXT
from backfill.ui.client import Answer, AskError
from backfill.ui.parser import NO, UNAVAILABLE
from backfill.ui.web import answers, orders
from backfill.ui.web.asker import Asker, Asks
from backfill.ui.web.replies import HEADERS, TROUBLE, AsciiJson, Known, told, troubles

_REFUSED = troubles(_404="There is none.", _409="It cannot be done; the sentence says why.")
api = APIRouter(prefix="/api/v1", tags=["acting"], responses=TROUBLE | _REFUSED)

Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=128,
        description="A word of the client's own: the same order with the same word is done once.",
    ),
]
Name = Annotated[str, Path(min_length=1, max_length=256)]
# Texts that are checked or wait for that; a long one takes seconds.
_MOST_CHECKS = 4


@api.post("/evictions", status_code=202, response_model=answers.OrderAnswer)
async def evict(asker: Asks, order: orders.EvictionOrder, key: Key = "") -> Response:
    """Close a host or a node and push aside what is there, or open it again (`on` false)."""
    return await _ordered(asker, "evict", key, order.model_dump(), f"explain/{order.subject}")


@api.post("/reclaims", status_code=202, response_model=answers.OrderAnswer)
async def reclaim(asker: Asks, order: orders.ReclaimOrder, key: Key = "") -> Response:
    """Let only so many instances stay on a burst host, or any number again (`on` false)."""
    return await _ordered(asker, "reclaim", key, order.model_dump(), f"explain/{order.subject}")


@api.post("/retries", status_code=202, response_model=answers.OrderAnswer)
async def retry(asker: Asks, order: orders.RetryOrder, key: Key = "") -> Response:
    """Try a given-up node again."""
    return await _ordered(asker, "retry", key, order.model_dump(), f"explain/{order.subject}")


@api.post("/poke", status_code=202, response_model=answers.OrderAnswer)
async def poke(asker: Asks) -> Response:
    """Make the daemon look at everything now."""
    return await _ordered(asker, "poke", "", {}, "status")


@api.post("/fleets", status_code=202, response_model=answers.OrderAnswer)
async def fleet(asker: Asks, order: orders.FleetOrder, key: Key = "") -> Response:
    """Order instances that are made all or not at all."""
    return await _ordered(asker, "fleet", key, order.model_dump(), "fleets")


@api.delete("/fleets/{name}", status_code=202, response_model=answers.OrderAnswer)
async def no_fleet(asker: Asks, name: Name, key: Key = "") -> Response:
    """Let a fleet go."""
    return await _ordered(asker, "fleet", key, {"delete": name}, "fleets")


@api.post("/checkpoints", status_code=202, response_model=answers.OrderAnswer)
async def checkpoint(asker: Asks, order: orders.CheckpointWish, key: Key = "") -> Response:
    """Order a checkpoint of a job."""
    return await _ordered(asker, "checkpoint", key, order.model_dump(), f"explain/{order.job}")


@api.post("/checkpoints/verifications", status_code=202, response_model=answers.OrderAnswer)
async def verify(asker: Asks, order: orders.VerifyOrder, key: Key = "") -> Response:
    """Read checkpoints again and compare them with their checksums."""
    return await _errand(asker, "verify", key, order.model_dump())


@api.post("/checkpoints/restores", status_code=202, response_model=answers.OrderAnswer)
async def restore(asker: Asks, order: orders.RestoreOrder, key: Key = "") -> Response:
    """Verify a checkpoint, and let its job go on from it on all of its nodes."""
    return await _errand(asker, "restore", key, order.model_dump())


@api.post("/checkpoints/removals", status_code=202, response_model=answers.OrderAnswer)
async def remove(asker: Asks, order: orders.RemovalOrder, key: Key = "") -> Response:
    """Remove checkpoints; one name that is unknown, and none is removed."""
    return await _errand(asker, "remove-checkpoints", key, order.model_dump())


@api.post("/checkpoints/expiry", status_code=202, response_model=answers.OrderAnswer)
async def expire(asker: Asks, key: Key = "") -> Response:
    """Remove expired checkpoints that nobody needs."""
    return await _errand(asker, "expire", key, {})


@api.post("/drift", status_code=202, response_model=answers.OrderAnswer)
async def drift(asker: Asks, key: Key = "") -> Response:
    """Find out which nodes differ from Salt's states; nothing is changed."""
    return await _errand(asker, "drift", key, {})


@api.post("/provisions", status_code=202, response_model=answers.OrderAnswer)
async def provision(asker: Asks, order: orders.ProvisionOrder, key: Key = "") -> Response:
    """Run Salt's states on nodes where they do not hold."""
    return await _errand(asker, "provision", key, order.model_dump())


@api.post("/leaks", status_code=202, response_model=answers.OrderAnswer)
async def leaks(asker: Asks, order: orders.LeaksOrder, key: Key = "") -> Response:
    """Look for files that no instance needs any more, and remove them if that is wanted."""
    return await _errand(asker, "leaks", key, order.model_dump())


@api.post("/policy/reload", response_model=answers.ReloadAnswer)
async def reload(asker: Asks, key: Key = "") -> Response:
    """Have the policy file taken over as it is now; one with mistakes changes nothing."""
    answer = await asker.ask("reload", key=key)
    asker.gateway.forget()
    return told(answer)


@api.post("/policy/check", response_model=answers.CheckAnswer)
async def check(request: Request, asker: Asks, file: orders.PolicyText) -> Response:
    """Check the text of a policy file, by itself: no file that it names is read, and nothing is kept."""
    await asker.shared("ready")  # somebody who may read
    checks: TextChecks = request.app.state.checks
    return told({"problems": await checks.problems(file.text)})


@api.post("/policy/previews", status_code=202, response_model=answers.OrderAnswer)
async def preview(asker: Asks, file: orders.PreviewWish, key: Key = "") -> Response:
    """Play the text of a policy file on the journal's latest 24 hours: one at a time, for minutes."""
    if len(json.dumps(file.text)) > MOST_TEXT:
        raise _too_long()
    return await _errand(asker, "preview", key, {"text": file.text}, "policy/previews")


@api.get("/policy/previews/{name}", response_model=answers.PreviewAnswer)
async def previewed(asker: Asks, name: Name, known: Known = "") -> Response:
    """Tell what the policy file would have made of the day, beside what was done, as far as it is known."""
    return told(await asker.ask("previewed", id=name), known)


class TextChecks:
    """Texts that are checked: one at a time, as every answer shares Python's lock with that."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._inside = 0

    async def problems(self, text: str) -> list[str]:
        """Return what is wrong with a text. AskError where too many wait already."""
        if self._inside >= _MOST_CHECKS:
            raise AskError("too many policy files are being checked; ask again in a moment", UNAVAILABLE)
        self._inside += 1
        try:
            async with self._turn:
                return await to_thread.run_sync(_problems, text)
        finally:
            self._inside -= 1


def _too_long() -> AskError:
    why = f"text: more than {MOST_TEXT} bytes as JSON"
    return AskError(why, NO, {"error": why, "kind": "unreadable"})


def _problems(text: str) -> list[str]:
    return [str(problem) for problem in check_text(text, "policy.yaml")]


async def _ordered(asker: Asker, what: str, key: str, body: dict[str, object], follow: str) -> Response:
    """Pass an order on. What comes of it is seen under `follow`."""
    answer = await asker.ask(what, **body, key=key)
    asker.gateway.forget()
    return _taken(answer, follow)


async def _errand(
    asker: Asker, what: str, key: str, body: dict[str, object], where: str = "errands"
) -> Response:
    """Pass an order on that takes minutes. How far it has come is seen under its id."""
    answer = await asker.ask(what, **body, key=key)
    return _taken(answer, f"{where}/{answer['id']}")


def _taken(answer: Answer, follow: str) -> Response:
    path = f"/api/v1/{follow}"
    return AsciiJson(
        {"answer": dict(answer), "follow": path}, status_code=202, headers={**HEADERS, "Location": path}
    )
