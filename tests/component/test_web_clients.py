"""Clients of the web service that do not take their answers are hung up on, and others wait for none."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from backfill.lab.waiting import wait_until
from backfill.ui.web.client_bounds import SLOWEST_BYTES, PatientProtocol
from backfill.ui.web.tls import self_made
from tests.component.web_service import served

_PATIENCE_S = 60.0
_LONG = 8_000_000
_ASK = b"GET /static/timelines.js HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def hung_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set as soon as the service has given up a connection: who reads nothing does not hear of it."""
    lost, over = PatientProtocol.connection_lost, threading.Event()

    def note(protocol: PatientProtocol, exc: Exception | None) -> None:
        lost(protocol, exc)
        over.set()

    monkeypatch.setattr(PatientProtocol, "connection_lost", note)
    return over


@pytest.mark.parametrize("secure", [False, True])
def test_no_part_of_an_answer_waits_until_the_part_before_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    """It would do so for 40 ms, for which a client waits before it says that it has something."""
    receive, found = PatientProtocol.data_received, []

    def note(protocol: PatientProtocol, data: bytes) -> None:
        connection = protocol.transport.get_extra_info("socket")
        found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        receive(protocol, data)

    monkeypatch.setattr(PatientProtocol, "data_received", note)
    pair = self_made(tmp_path / "tls", time.time()) if secure else None
    with served(tmp_path / "none.sock", pair=pair) as port, _deaf(port, pair) as client:
        client.sendall(_ASK)
        assert client.recv(5) == b"HTTP/"
    assert found == [1]


def _deaf(port: int, pair: tuple[Path, Path] | None = None, room: int = 2048) -> socket.socket:
    """A connection with next to no room for answers. `pair`: the service's certificate and key."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.settimeout(_PATIENCE_S)
    client.connect(("127.0.0.1", port))
    if pair is None:
        return client
    context = ssl.create_default_context(cafile=str(pair[0]))
    context.check_hostname = False
    return context.wrap_socket(client)


@pytest.mark.parametrize("secure", [False, True])
def test_one_that_asks_much_and_reads_nothing_is_hung_up_on(
    tmp_path: Path, hung_up: threading.Event, caplog: pytest.LogCaptureFixture, secure: bool
) -> None:
    """However many answers still wait for it; the log hears nothing of it, whoever does it."""
    pair = self_made(tmp_path / "tls", time.time()) if secure else None
    with served(tmp_path / "none.sock", 0.2, pair) as port, _deaf(port, pair) as client:
        client.sendall(_ASK * 300)
        assert hung_up.wait(_PATIENCE_S)
    assert [r.message for r in caplog.records if r.name.startswith("uvicorn") and r.levelno > 20] == []


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the service believe that the time of a look has passed, and that of an idle connection."""
    made, connection_made = list[PatientProtocol](), PatientProtocol.connection_made

    def note(protocol: PatientProtocol, transport: Any) -> None:
        connection_made(protocol, transport)
        made.append(protocol)

    def look() -> None:
        protocol, looked = made[0], threading.Event()

        def do() -> None:
            if protocol in protocol.connections:
                protocol._late.cancel()
                protocol._look()
                protocol.timeout_keep_alive_handler()
            looked.set()

        protocol.loop.call_soon_threadsafe(do)
        assert looked.wait(_PATIENCE_S)

    monkeypatch.setattr(PatientProtocol, "connection_made", note)
    # What asyncio gives a close with TLS.
    monkeypatch.setattr("asyncio.constants.SSL_SHUTDOWN_TIMEOUT", 0.001)
    return look


async def _long(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with more than the kernel keeps."""
    if scope["type"] == "http":
        length = (b"content-length", str(_LONG).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": bytes(_LONG)})


def _read(client: socket.socket, size: int) -> int:
    """Take so much; how much there was."""
    left = size
    while left and (data := client.recv(left)):
        left -= len(data)
    return size - left


@pytest.mark.parametrize("close", ["", "Connection: close\r\n"])
@pytest.mark.parametrize("secure", [False, True])
def test_one_that_reads_steadily_gets_all_of_it(
    tmp_path: Path, passes: Callable[[], None], secure: bool, close: str
) -> None:
    """As much between two looks as comes at 40 KB/s, while the kernel still has more than that."""
    pair = self_made(tmp_path / "tls", time.time()) if secure else None
    with served(tmp_path / "none.sock", 3600.0, pair, _long) as port, _deaf(port, pair, 1 << 16) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode())
        got = 0
        while got < _LONG and (piece := _read(client, 400_000)):
            got += piece
            passes()
        assert got >= _LONG


@pytest.mark.parametrize("close", ["", "Connection: close\r\n"])
@pytest.mark.parametrize("secure", [False, True])
def test_one_that_stops_reading_is_hung_up_on(
    tmp_path: Path, passes: Callable[[], None], hung_up: threading.Event, secure: bool, close: str
) -> None:
    """At the second look after what it has acknowledged, though the kernel would take more."""
    pair = self_made(tmp_path / "tls", time.time()) if secure else None
    with served(tmp_path / "none.sock", 3600.0, pair, _long) as port, _deaf(port, pair, 1 << 16) as client:
        client.sendall(f"GET / HTTP/1.1\r\nHost: x\r\n{close}\r\n".encode())
        assert _read(client, 400_000) == 400_000
        while not hung_up.wait(0):
            passes()


def _told(port: int, address: str = "127.0.0.1") -> bytes:
    """What a client at this address hears when it asks; nothing where it is hung up on."""
    with socket.create_connection(("127.0.0.1", port), _PATIENCE_S, (address, 0)) as client:
        try:
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return b"".join(iter(lambda: client.recv(4096), b""))
        except ConnectionError:
            return b""


def test_an_address_has_so_many_connections_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is told so in one sentence, and those after it nothing; other addresses are served."""
    monkeypatch.setattr("backfill.ui.web.client_bounds.is_loopback", lambda address: False)
    monkeypatch.setattr("backfill.ui.web.client_bounds.MOST_OF_ADDRESS", 3)
    monkeypatch.setattr("backfill.ui.web.client_bounds._REFUSED_OF_ADDRESS", 1)
    with served(tmp_path / "none.sock") as port, ExitStack() as crowd:
        for _ in range(3):
            crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
        head, _, body = _told(port).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 429 Too Many Requests\r\n")
        what = "this address has 3 connections, the most that one may have; close some"
        assert json.loads(body) == {"error": what}
        with socket.create_connection(("127.0.0.1", port)):
            assert _told(port) == b""
            assert _told(port, "127.0.0.2").startswith(b"HTTP/1.1 200 ")
        crowd.close()
        assert wait_until(lambda: _told(port).startswith(b"HTTP/1.1 200 "), _PATIENCE_S)


def test_who_never_begins_tls_has_no_more_connections_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes a descriptor: one address without a word would take them all, and nobody else come in."""
    monkeypatch.setattr("backfill.ui.web.client_bounds.is_loopback", lambda address: False)
    monkeypatch.setattr("backfill.ui.web.client_bounds.MOST_OF_ADDRESS", 3)
    monkeypatch.setattr("backfill.ui.web.client_bounds._REFUSED_OF_ADDRESS", 1)
    pair = self_made(tmp_path / "tls", time.time())
    context = ssl.create_default_context(cafile=str(pair[0]))

    def lives(address: str) -> bool:
        with ExitStack() as client, suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
            plain = client.enter_context(socket.create_connection(("127.0.0.1", port), 30.0, (address, 0)))
            secure = client.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            secure.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return secure.recv(4096).startswith(b"HTTP/1.1 200 ")
        return False

    with served(tmp_path / "none.sock", pair=pair) as port, ExitStack() as crowd:
        silent = [crowd.enter_context(socket.create_connection(("127.0.0.1", port), 30.0)) for _ in range(6)]
        assert [_closed(one) for one in silent[4:]] == [True, True]
        assert not lives("127.0.0.1")
        assert lives("127.0.0.2")
        crowd.close()
        assert wait_until(lambda: lives("127.0.0.1"), _PATIENCE_S)


def _closed(client: socket.socket) -> bool:
    """Wait until the other end hangs up; False if it does not within the client's patience."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_all_together_have_so_many_connections_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loopback as well, from where many clients may come: descriptors are left for what others are told."""
    monkeypatch.setattr("backfill.ui.web.client_bounds.MOST_OPEN", 5)
    with served(tmp_path / "none.sock") as port, ExitStack() as crowd:
        idle = [crowd.enter_context(socket.create_connection(("127.0.0.1", port), 30.0)) for _ in range(7)]
        assert [_closed(one) for one in idle[5:]] == [True, True]
        crowd.close()
        assert wait_until(lambda: _told(port).startswith(b"HTTP/1.1 200 "), _PATIENCE_S)


class Wire:
    """A transport whose client takes as much as the test says, and a loop whose time does not pass."""

    def __init__(self, peer: str = "") -> None:
        self.peer, self.left, self.ends = peer, 0, ""
        self._due: Callable[[], None] | None = None

    def write(self, data: bytes) -> None:
        """Keep it until somebody takes it."""
        self.left += len(data)

    def get_write_buffer_size(self) -> int:
        """Return what nobody has taken yet."""
        return self.left

    def get_extra_info(self, name: str) -> object:
        """Know nothing but who it is."""
        return (self.peer, 4711) if name == "peername" and self.peer else None

    def is_closing(self) -> bool:
        """Return True once it is to end."""
        return bool(self.ends)

    def close(self) -> None:
        """End when everything is taken."""
        self.ends = self.ends or "closed"

    def abort(self) -> None:
        """End at once."""
        self.ends = "aborted"

    def call_later(self, after_s: float, do: Callable[[], None]) -> None:
        """Remember what the protocol will do."""
        self._due = do

    def look(self) -> str:
        """Let the time pass until the next look; how the connection ends then, if it does."""
        do, self._due = self._due, None
        assert do is not None
        do()
        return self.ends


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError


def _connected(wire: Wire, *, complete: bool) -> PatientProtocol:
    """A connection over it, whose latest answer is complete or not."""
    loop: Any = wire
    protocol = PatientProtocol(uvicorn.Config(_never), ServerState(), {}, loop)
    cycle: Any = SimpleNamespace(response_complete=complete)
    protocol.cycle = cycle
    transport: Any = wire
    protocol.connection_made(transport)
    return protocol


def test_one_that_reads_slowly_has_the_time_that_it_takes() -> None:
    """What is added meanwhile does not count; a client that takes hardly anything is not waited for."""
    wire = Wire()
    protocol = _connected(wire, complete=False)
    assert wire.look() == ""  # an answer that takes long to make
    protocol.transport.write(b"x" * 10 * SLOWEST_BYTES)
    assert wire.look() == ""
    for _ in range(5):
        wire.left -= SLOWEST_BYTES
        protocol.transport.write(b"x" * 2 * SLOWEST_BYTES)
        assert wire.look() == ""
    wire.left -= SLOWEST_BYTES - 1
    assert wire.look() == "aborted"


def test_a_short_rest_is_to_be_taken_whole() -> None:
    """As of a stream, whose pieces are small."""
    wire = Wire()
    protocol = _connected(wire, complete=False)
    for _ in range(3):
        protocol.transport.write(b"x" * 300)
        assert wire.look() == ""
        wire.left -= 300
    protocol.transport.write(b"x" * 300)
    assert wire.look() == ""
    wire.left -= 299
    assert wire.look() == "aborted"


def test_nobody_is_idle_for_whom_something_waits() -> None:
    """Its connection is closed at the look after it has taken all, not before."""
    wire = Wire()
    protocol = _connected(wire, complete=True)
    protocol.transport.write(b"x" * 2 * SLOWEST_BYTES)
    for _ in range(2):
        protocol.timeout_keep_alive_handler()
        assert wire.look() == ""
        wire.left -= SLOWEST_BYTES
    assert wire.look() == "closed"


def test_a_connection_that_is_to_be_closed_is_looked_at_until_it_is() -> None:
    """Its client may still take the last answer."""
    wire = Wire()
    protocol = _connected(wire, complete=True)
    protocol.transport.write(b"x" * 3 * SLOWEST_BYTES)
    protocol.transport.close()
    assert wire.look() == "closed"
    for _ in range(2):
        wire.left -= SLOWEST_BYTES
        assert wire.look() == "closed"
    assert wire.look() == "aborted"


@pytest.mark.parametrize(
    ("peers", "told"),
    [
        ("2001:db8::{:x}", True),
        ("2001:db8:0:{:x}::1", False),
        ("192.0.2.7", True),
        ("192.0.2.{}", False),
        ("127.0.0.1", False),
        ("::1", False),
    ],
)
def test_who_has_a_network_counts_as_one_and_loopback_has_no_bound(peers: str, told: bool) -> None:
    """Another server of this machine brings all its clients from there."""
    state, wires = ServerState(), [Wire(peers.format(number)) for number in range(1, 101)]
    for wire in wires:
        loop: Any = wire
        protocol = PatientProtocol(uvicorn.Config(_never), state, {}, loop)
        protocol.connection_made(loop)
        protocol.data_received(b"GET / HTTP/1.1\r\n")
    assert [wire.ends for wire in wires] == (
        [""] * 64 + ["closed"] * 16 + ["aborted"] * 20 if told else [""] * 100
    )
