"""Events as they come: server-sent events, which a browser reads by itself and curl shows."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from backfill.ui.client import AskError
from backfill.ui.parser import UNAVAILABLE
from backfill.ui.web.asker import Asker, Asks
from backfill.ui.web.client_bounds import is_loopback, network_of
from backfill.ui.web.replies import HEADERS, TROUBLE, Documented

_LOOK_EVERY_S = 1.0
_SIGN_OF_LIFE_S = 15.0
_PAGE = 200
# Of all, and of one address: it has connections left for other questions (`client_bounds`).
_MOST_STREAMS, _MOST_OF_ADDRESS = 64, 32
_STREAM: Documented = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
api = APIRouter(prefix="/api/v1", tags=["reading"], responses=TROUBLE)

After = Annotated[int, Query(ge=0, le=1 << 62, description="Begin behind this id; 0: with what comes now.")]
Last = Annotated[str, Header(alias="Last-Event-ID", max_length=20, pattern=r"^\d*$")]


class Streams:
    """How many there are, by the address that follows."""

    def __init__(self) -> None:
        self.open: Counter[str] = Counter()

    def need_room(self, address: str) -> None:
        """AskError where one more of this address is too many."""
        if self.open.total() >= _MOST_STREAMS:
            raise AskError(f"{_MOST_STREAMS} clients follow already; read /api/v1/events", UNAVAILABLE)
        if self.open[network_of(address)] >= _MOST_OF_ADDRESS and not is_loopback(address):
            problem = f"{_MOST_OF_ADDRESS} clients of this address follow already; read /api/v1/events"
            raise AskError(problem, UNAVAILABLE)

    @contextmanager
    def one_more(self, address: str) -> Iterator[None]:
        """Count it as long as it follows."""
        network = network_of(address)
        self.open[network] += 1
        try:
            yield
        finally:
            self.open[network] -= 1
            self.open += Counter()  # forgets those of whom nobody follows


@api.get("/stream", response_class=Response, responses=_STREAM)
async def stream(request: Request, asker: Asks, after: After = 0, last: Last = "") -> Response:
    """Follow the events. A client that comes again goes on where it was, by Last-Event-ID."""
    streams: Streams = request.app.state.streams
    streams.need_room(asker.address)
    begin = int(last or 0) or after
    if not begin:
        begin = (await asker.shared("events", before=0, limit=1))["read_to"]
    return StreamingResponse(
        _followed(asker, streams, begin),
        media_type="text/event-stream",
        headers={**HEADERS, "X-Accel-Buffering": "no"},
    )


async def _followed(asker: Asker, streams: Streams, after: int) -> AsyncIterator[str]:
    with streams.one_more(asker.address):
        async for text in _events(asker, after):
            yield text


async def _events(asker: Asker, after: int) -> AsyncIterator[str]:
    """Those behind `after`, for ever: all who follow ask the daemon the same, so that is one question."""
    said_s = time.monotonic()
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


def _event(kind: str, number: int | None, body: object) -> str:
    head = "" if number is None else f"id: {number}\n"
    return f"{head}event: {kind}\ndata: {json.dumps(body)}\n\n"
