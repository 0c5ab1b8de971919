"""Events as they come: server-sent events, which a browser reads by itself and curl shows."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from backfill.ui.client import AskError
from backfill.ui.parser import UNAVAILABLE
from backfill.ui.web.asker import Asker, Asks
from backfill.ui.web.replies import HEADERS, TROUBLE, Documented

_LOOK_EVERY_S = 1.0
_SIGN_OF_LIFE_S = 15.0
_PAGE = 200
_MOST_STREAMS = 64
_STREAM: Documented = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
api = APIRouter(prefix="/api/v1", tags=["reading"], responses=TROUBLE)

After = Annotated[int, Query(ge=0, le=1 << 62, description="Begin behind this id; 0: with what comes now.")]
Last = Annotated[str, Header(alias="Last-Event-ID", max_length=20, pattern=r"^\d*$")]


class Streams:
    """How many there are."""

    def __init__(self) -> None:
        self.open = 0


@api.get("/stream", response_class=Response, responses=_STREAM)
async def stream(request: Request, asker: Asks, after: After = 0, last: Last = "") -> Response:
    """Follow the events. A client that comes again goes on where it was, by Last-Event-ID."""
    streams: Streams = request.app.state.streams
    if streams.open >= _MOST_STREAMS:
        raise AskError(f"{_MOST_STREAMS} clients follow already; read /api/v1/events", UNAVAILABLE)
    begin = int(last or 0) or after
    if not begin:
        begin = (await asker.shared("events", before=0, limit=1))["read_to"]
    return StreamingResponse(
        _events(asker, streams, begin),
        media_type="text/event-stream",
        headers={**HEADERS, "X-Accel-Buffering": "no"},
    )


async def _events(asker: Asker, streams: Streams, after: int) -> AsyncIterator[str]:
    """Those behind `after`, for ever: all who follow ask the daemon the same, so that is one question."""
    streams.open += 1
    said_s = time.monotonic()
    try:
        yield ": events of backfill\n\n"
        while True:
            try:
                found = await asker.shared("events", after=after, before=0, limit=_PAGE)
            except AskError as error:
                yield _event("trouble", None, {"error": str(error)})
                if error.code != UNAVAILABLE:
                    return  # the token or the session is over
                found = {"events": [], "read_to": after, "newest": after, "more": False}
            for event in found["events"]:
                yield _event("event", event["id"], event)
                said_s = time.monotonic()
            # An older copy of the journal was put back: it goes on with what comes there.
            after = min(max(after, found["read_to"]), found["newest"])
            if found["more"]:
                continue
            if time.monotonic() - said_s > _SIGN_OF_LIFE_S:
                yield ": still here\n\n"
                said_s = time.monotonic()
            await asyncio.sleep(_LOOK_EVERY_S)
    finally:
        streams.open -= 1


def _event(kind: str, number: int | None, body: object) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(body)}\n\n"
