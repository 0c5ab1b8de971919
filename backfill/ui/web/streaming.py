"""Events as they come: server-sent events, which a browser reads by itself and curl shows."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, cast

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from backfill.ui.client import Answer, AskError
from backfill.ui.parser import UNAVAILABLE
from backfill.ui.restored import TOLD, LastRead, place_in_copy
from backfill.ui.web.asker import Asker, Asks
from backfill.ui.web.client_bounds import is_loopback, network_of
from backfill.ui.web.replies import HEADERS, TROUBLE, Documented

_LOOK_EVERY_S = 1.0
_SIGN_OF_LIFE_S, _SIGN_OF_LIFE = 15.0, ": still here\n\n"
_PAGE = 200
# Of all, and of one address: it has connections left for other questions (`client_bounds`).
_MOST_STREAMS, _MOST_OF_ADDRESS = 64, 32
_STREAM: Documented = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}
api = APIRouter(prefix="/api/v1", tags=["reading"], responses=TROUBLE)

After = Annotated[int, Query(ge=0, le=1 << 62, description="Begin behind this id; 0: with what comes now.")]
Last = Annotated[str, Header(alias="Last-Event-ID", pattern=r"^(\d{1,18}(-\d{1,18})?)?$")]


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
        """Count it as long as it follows. AskError where it is one too many."""
        self.need_room(address)  # anew: others may have come since it was let in
        network = network_of(address)
        self.open[network] += 1
        try:
            yield
        finally:
            self.open[network] -= 1
            self.open += Counter()  # forgets those of whom nobody follows


@api.get("/stream", response_class=Response, responses=_STREAM)
async def stream(request: Request, asker: Asks, after: After = 0, last: Last = "") -> Response:
    """Follow the events. A client that comes again goes on where it was, by Last-Event-ID; if an older copy
    of the journal was put back meanwhile, the event `restored` says so, and what came since then follows."""
    streams: Streams = request.app.state.streams
    streams.need_room(asker.address)
    place = LastRead.read(last) if last.strip("0") else LastRead(after)
    begin = place.id
    if not begin:
        now = await asker.shared("events", before=0, limit=1)
        begin = now["read_to"]
        place = LastRead.of(now["events"][-1]) if now["events"] else LastRead(begin)
    return _Following(streams, asker, place, begin)


class _Following(StreamingResponse):
    """Events to one client, who counts from before the first byte until they have gone."""

    def __init__(self, streams: Streams, asker: Asker, last: LastRead, after: int) -> None:
        headers = {**HEADERS, "X-Accel-Buffering": "no"}
        super().__init__(_events(asker, last, after), media_type="text/event-stream", headers=headers)
        self._streams, self._address = streams, asker.address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them. AskError where one more is too many."""
        with self._streams.one_more(self._address):
            await super().__call__(scope, receive, send)


async def _events(asker: Asker, last: LastRead, after: int) -> AsyncIterator[str]:
    """Those behind `after`, for ever: all who follow ask the daemon the same, so that is one question.

    `last`: what was read last. Whether the journal still has it is asked at first, and again after each
    time without a daemon: meanwhile an older copy may have been put back.
    """
    said_s = time.monotonic()
    doubtful = True
    yield ": events of backfill\n\n"
    while True:
        found: Answer = {"events": [], "read_to": after, "more": False}
        try:
            if doubtful:
                text, after = await _resumed(asker, last)
                yield text
            found = await asker.shared("events", **_behind(after), before=0, limit=_PAGE)
            doubtful = found["newest"] < after
        except AskError as error:
            yield _event("trouble", "", {"error": str(error)})
            if error.code != UNAVAILABLE:
                return  # the token or the session is over
            doubtful = True
        for event in found["events"]:
            last = LastRead.of(event)
            yield _event("event", str(last), event)
            said_s = time.monotonic()
        after = max(after, found["read_to"])
        if found["more"]:
            continue
        if time.monotonic() - said_s > _SIGN_OF_LIFE_S:
            yield _SIGN_OF_LIFE
            said_s = time.monotonic()
        await asyncio.sleep(_LOOK_EVERY_S)


def _behind(after: int) -> dict[str, Any]:
    return {"after": after} if after else {"first": True}


async def _resumed(asker: Asker, last: LastRead) -> tuple[str, int]:
    """Return what is to be said of the journal, and behind which id to go on."""
    place = await _place(asker, last)
    if place is None:
        return _SIGN_OF_LIFE, last.id
    return _event("restored", "", {"text": TOLD, "after": place}), place


async def _place(asker: Asker, last: LastRead) -> int | None:
    questions = place_in_copy(last)
    try:
        question = next(questions)
        while True:
            question = questions.send(await asker.shared("events", **question))
    except StopIteration as end:
        return cast("int | None", end.value)


def _event(kind: str, number: str, body: object) -> str:
    head = f"id: {number}\n" if number else ""
    return f"{head}event: {kind}\ndata: {json.dumps(body)}\n\n"
