"""Bounds of one client: how long it may take, how much it may send, and how often it may come.

None of this protects the daemon, which has bounds of its own: it keeps the service alive for others.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BODY_BYTES = 1 << 18
# A request must be complete, and each piece of an answer taken, within this.
WITHIN_S = 10.0
# Requests that one address may make in a second in the long run, and those of so long at once.
RATE_PER_S, _BURST_S = 20.0, 3.0
_MOST_ADDRESSES = 4096


class Rates:
    """A bucket of requests for each address; the addresses seen last are remembered."""

    def __init__(self, per_s: float) -> None:
        self._per_s, self._burst = per_s, per_s * _BURST_S
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admit(self, address: str, now_s: float) -> bool:
        """Take one from the address's bucket; return False if it is empty."""
        left, at_s = self._left.pop(address, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        admitted = left >= 1.0
        self._left[address] = (left - admitted, now_s)
        if len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)
        return admitted


class _TooMuchError(Exception):
    """A body is larger than it may be."""


class ClientBounds:
    """ASGI middleware: body limit, time limits and rates, each with one sentence."""

    def __init__(
        self,
        app: ASGIApp,
        per_s: float = RATE_PER_S,
        within_s: float = WITHIN_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._within_s, self._monotonic = app, within_s, monotonic
        self._rates = Rates(per_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand one request on, within bounds."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        address = (scope.get("client") or ("",))[0]
        if not self._rates.admit(address, self._monotonic()):
            await _say(send, 429, "too many requests from this address; ask again in a second")
            return
        began = False

        async def patient_send(message: Message) -> None:
            nonlocal began
            began = True
            async with asyncio.timeout(self._within_s):
                await send(message)

        try:
            body = await self._body(receive)
            await self._app(scope, _again(body, receive), patient_send)
        except _TooMuchError:
            await _say(send, 413, f"a body of more than {MOST_BODY_BYTES} bytes; send less")
        except TimeoutError:
            if not began:
                await _say(send, 408, f"the request was not complete within {self._within_s:g} s")
            # Otherwise the client does not take its answer: returning ends the connection.

    async def _body(self, receive: Receive) -> bytes:
        data = bytearray()
        async with asyncio.timeout(self._within_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return bytes(data)
                data += message.get("body", b"")
                if len(data) > MOST_BODY_BYTES:
                    raise _TooMuchError
                if not message.get("more_body"):
                    return bytes(data)


def _again(body: bytes, receive: Receive) -> Receive:
    """Give the body that was read already, then what follows: that the client has gone."""
    told = False

    async def first() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first


async def _say(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(b"retry-after", b"1"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class PatientProtocol(H11Protocol):
    """Hangs up on a client that has not sent a whole head in time: uvicorn itself waits for ever."""

    within_s = WITHIN_S

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._late.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._late = self.loop.call_later(self.within_s, self._look)
        self._before = self.cycle

    def _look(self) -> None:
        """Hang up if the same request as at the look before is under way, or none has come since."""
        cycle = self.cycle  # None before the first request, whatever its type says
        if cycle is self._before and getattr(cycle, "response_complete", True):
            self.transport.close()
            return
        self._look_again()
