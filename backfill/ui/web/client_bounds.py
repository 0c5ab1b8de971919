"""Bounds of one client: how long it may take, how much it may send, and how often it may come.

None of this protects the daemon, which has bounds of its own: it keeps the service alive for others.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from fcntl import ioctl
from functools import partial
from ipaddress import ip_address, ip_network
from math import inf
from termios import TIOCOUTQ
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_BODY_BYTES = 1 << 18
# A request must be complete, and what waits for a client be taken, within this. Of what is long,
# so many bytes within the same time.
WITHIN_S, SLOWEST_BYTES = 10.0, 1 << 14
# Requests that one address may make in a second in the long run, and those of so long at once.
RATE_PER_S, _BURST_S = 20.0, 3.0
_MOST_ADDRESSES = 4096
# Connections that one address may have: a quarter of all, so that one with slow clients leaves the others
# theirs; a browser has six. So many more are told that they are too many. Loopback may have all: another
# server of this machine, or a tunnel, brings many clients from there.
MOST_OF_ADDRESS, _REFUSED_OF_ADDRESS = 64, 16
# Connections of all, whatever has come of them: the unit may have 1024 descriptors, and needs some itself.
MOST_OPEN = 512
# Where in struct tcp_info (linux/tcp.h, since 4.1) tcpi_bytes_acked is.
_ACKED_AT = 120


def network_of(address: str) -> str:
    """Return for whom an address counts: a client with IPv6 has a whole /64 as a rule."""
    try:
        known = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    return address if known.version == 4 else str(ip_network((known, 64), strict=False))


def is_loopback(address: str) -> bool:
    """Return True for this machine itself."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


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
        if not self._rates.admit(network_of(address), self._monotonic()):
            await _say(send, 429, "too many requests from this address; ask again in a second")
            return
        try:
            body = await self._body(receive)
        except _TooMuchError:
            await _say(send, 413, f"a body of more than {MOST_BODY_BYTES} bytes; send less")
        except TimeoutError:
            await _say(send, 408, f"the request was not complete within {self._within_s:g} s")
        else:
            await self._app(scope, _again(body, receive), send)

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


class _Counted(socket.socket):
    """A connection that counts until it is closed."""

    gone: Callable[[], None] | None = None

    def close(self) -> None:
        """Close it, and count it no more."""
        super().close()
        gone, self.gone = self.gone, None
        if gone is not None:
            gone()


class Doorway(socket.socket):
    """Listens, and hangs up on connections beyond the bounds as they come.

    uvicorn hears of one with TLS only once the client has begun that, which it may never do.
    """

    def __init__(self, listening: socket.socket) -> None:
        """Take the place of a socket that listens."""
        super().__init__(listening.family, listening.type, listening.proto, fileno=listening.detach())
        self._open: Counter[str] = Counter()

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection. ConnectionAbortedError where it is one too many: asyncio goes on to the next."""
        taken, address = super().accept()
        connection = _Counted(taken.family, taken.type, taken.proto, fileno=taken.detach())
        network = network_of(str(address[0]))
        of_one = 0 if is_loopback(str(address[0])) else self._open[network]
        if of_one >= MOST_OF_ADDRESS + _REFUSED_OF_ADDRESS or self._open.total() >= MOST_OPEN:
            connection.close()
            raise ConnectionAbortedError
        self._open[network] += 1
        connection.gone = partial(self._left, network)
        return connection, address

    def _left(self, network: str) -> None:
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]


class PatientLoop(asyncio.SelectorEventLoop):
    """Lets a close with TLS take its time: `PatientProtocol` ends those that take too long.

    asyncio would cut off what is left after so long, however steadily the client takes it. For TLS to
    begin it would wait a minute.
    """

    async def create_server(self, *args: Any, **settings: Any) -> asyncio.Server:
        """Listen as any loop does."""
        if settings.get("ssl") is not None:
            settings["ssl_shutdown_timeout"] = inf
            settings["ssl_handshake_timeout"] = WITHIN_S
        return await super().create_server(*args, **settings)


class _Outlet:
    """A transport that knows how much its client has taken, and how much waits for it at least.

    The client has what it acknowledged, as the kernel counts it: of what the kernel took, megabytes may
    wait there, and it asks for more only when a third of them has gone. asyncio tells of TLS only what is
    not yet encrypted, and nothing of what waits between that and the kernel.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._given = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it, or keep it for a client that does not take it yet."""
        self._given += len(data)
        self._transport.write(data)

    def close(self) -> None:
        """Close once what is left is taken. With TLS asyncio could not abort after a second close."""
        if not self._transport.is_closing():
            self._transport.close()

    def hurry(self) -> None:
        """Let an answer's body not wait until the client has its head, which takes 40 ms.

        asyncio sees to that itself, but not with a socket that was made without naming its protocol.
        """
        sock = self._socket()
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def waiting(self) -> int:
        """Return how many bytes wait for the client, as far as anybody tells; 0: none."""
        sock = self._socket()
        sent = b"" if sock is None else ioctl(sock.fileno(), TIOCOUTQ, bytes(4))
        return int(self._transport.get_write_buffer_size()) + int.from_bytes(sent, sys.byteorder)

    def taken(self) -> int:
        """Return how many bytes of all the client has acknowledged."""
        sock = self._socket()
        if sock is None:
            return self._given - self.waiting()
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED_AT + 8)
        return int(struct.unpack_from("=Q", told, _ACKED_AT)[0])

    def _socket(self) -> Any:
        """Return the connection; None where there is none, or none any more."""
        sock = self._transport.get_extra_info("socket")
        return None if sock is None or sock.fileno() < 0 else sock


def _refusal() -> bytes:
    what = f"this address has {MOST_OF_ADDRESS} connections, the most that one may have; close some"
    body = json.dumps({"error": what}).encode()
    head = f"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\nretry-after: 1\r\nconnection: close\r\n\r\n".encode() + body


class PatientProtocol(H11Protocol):
    """Hangs up on a client that has not sent a whole head in time, or does not take its answers.

    uvicorn itself waits for ever for both. An address that has too many connections is told so by the
    next ones, and then by nothing.
    """

    within_s = WITHIN_S

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        self._out = _Outlet(transport)
        self._out.hurry()
        super().connection_made(self._out)  # type: ignore[arg-type]  # it is used like one
        address = self.client[0] if self.client is not None else ""
        self.network = "" if is_loopback(address) else network_of(address)
        others = self._of_its_address()
        self._refused = others > MOST_OF_ADDRESS
        if others > MOST_OF_ADDRESS + _REFUSED_OF_ADDRESS:
            transport.abort()
        self._look_again()

    def _of_its_address(self) -> int:
        """Count the connections of this one's address, itself among them."""
        if not self.network:
            return 1
        return sum(getattr(connection, "network", "") == self.network for connection in self.connections)

    def data_received(self, data: bytes) -> None:
        """Take a request, or say that there are too many connections: who has not asked would not hear it."""
        if not self._refused:
            super().data_received(data)
        elif not self.transport.is_closing():
            self.transport.write(_refusal())
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close what nobody uses; a client that still takes its answer does, and is looked at."""
        if not self._out.waiting():
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._late.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._late = self.loop.call_later(self.within_s, self._look)
        self._before = self.cycle
        waiting = self._out.waiting()
        self._owing = waiting > 0 or self.transport.is_closing()
        self._due = self._out.taken() + max(1, min(waiting, SLOWEST_BYTES))

    def _look(self) -> None:
        """Hang up if what waited at the look before was not taken; then if nothing has come since.

        A close waits for the client to take what is left, so it is looked at as well.
        """
        closing = self.transport.is_closing()
        if self._owing and (closing or self._out.waiting()) and self._out.taken() < self._due:
            self.transport.abort()
            return
        cycle = self.cycle  # None before the first request, whatever its type says
        idle = cycle is self._before and getattr(cycle, "response_complete", True)
        if idle and not self._out.waiting():
            self.transport.close()
        self._look_again()
