"""The daemon's sockets: whoever comes, however they behave, the next hook is heard."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from backfill.engine.doorkeeper import Doorkeeper
from backfill.engine.listener import Listener
from backfill.engine.messages import HookCall, HookGone, Message
from backfill.ui.client import AskError, Client

_PATIENCE_S = 30.0
NOBODY = 65534


class Place:
    """A listener whose answers repeat the question, and its inbox."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.listener = Listener(self.inbox, lambda body, uid: {"heard": body}, _PATIENCE_S)
        self.listener.listen_unix(path)

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(_PATIENCE_S)
        client.connect(str(self.path))
        return client

    def ask(self, line: bytes) -> bytes:
        """What comes back; empty when it hangs up."""
        with self.connect() as client:
            client.sendall(line)
            with client.makefile("rb") as lines:
                return lines.readline()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "daemon.sock")
    yield place
    place.listener.close()


def test_a_hook_is_heard_answered_and_known_to_have_gone(place: Place) -> None:
    """Its line becomes a call; the daemon's thread answers; its end is told."""
    with place.connect() as client:
        client.sendall(b"backfill1 allocated job=7 nodes=bm[1-2]\n")
        call = place.inbox.get(timeout=_PATIENCE_S)
        assert isinstance(call, HookCall)
        assert (call.job_id, call.nodes) == ("7", ("bm1", "bm2"))
        call.reply("ok free")
        assert client.recv(100) == b"ok free\n"
    gone = place.inbox.get(timeout=_PATIENCE_S)
    assert isinstance(gone, HookGone)
    assert gone.call is call


@pytest.mark.parametrize(
    "line",
    [
        b"\x00\xff\xfe\n",
        b"backfill1 allocated\n",
        b"backfill1 allocated job=x nodes=bm1\n",
        b"backfill1 allocated job=7 nodes=bm[1-\n",
        b"backfill1 allocated job=7 nodes=n[1-99999999999]\n",
        b"[1, 2]\n",
        b"{" * 100_000 + b"\n",
        b"[" * 100_000 + b"\n",
        b"x" * ((1 << 20) + 70_000),
    ],
)
def test_nonsense_is_hung_up_on_and_the_next_one_is_heard(
    place: Place, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """One sentence in the log each, and no thread dies of it."""
    with contextlib.suppress(OSError):  # it may hang up while we are still talking
        assert place.ask(line) == b""
    assert json.loads(place.ask(b'{"ask": "status"}\n')) == {"heard": {"ask": "status"}}
    assert "a client was turned away" in caplog.text


def test_clients_beyond_the_daemons_descriptors_do_not_end_it(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever comes when no descriptor is left waits, and is heard when there is one again."""
    crowd = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(20)]
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = [number for number in range(used) if not _open(number)]
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in free]
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 1, hard))
    try:
        for client in crowd:
            client.connect(str(place.path))
        deadline_s = time.monotonic() + _PATIENCE_S
        while "no client can be let in" not in caplog.text:
            assert time.monotonic() < deadline_s
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)
        for client in crowd:
            client.close()
    assert place.ask(b'{"ask": "status"}\n') != b""


def _open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def test_strangers_are_few_at_a_time() -> None:
    """Root and the daemon's own user always come in, whoever else is there."""
    door = Doorkeeper(most=2)
    assert [door.admit(NOBODY) for _ in range(3)] == [True, True, False]
    assert all(door.admit(uid) for uid in (0, os.getuid(), 0))
    door.leave(0)
    assert not door.admit(NOBODY)
    door.leave(NOBODY)
    assert door.admit(NOBODY)


def test_who_is_one_too_many_is_told_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that there is no daemon, however early it hung up."""
    monkeypatch.setattr("backfill.engine.listener._peer_uid", lambda client: NOBODY)
    monkeypatch.setattr(place.listener, "_door", Doorkeeper(most=0))
    for _ in range(20):  # its question may come before the answer, or after it
        with pytest.raises(AskError, match="too many questions at once; ask again in a moment"):
            Client(str(place.path)).ask("status")


def test_a_second_daemon_takes_nothing_from_the_first(place: Place) -> None:
    """It is refused, and tidies up nothing but its own."""
    second = Listener(place.inbox, lambda body, uid: {}, _PATIENCE_S)
    with pytest.raises(RuntimeError, match="another daemon answers on"):
        second.listen_unix(place.path)
    second.close()
    assert place.ask(b'{"ask": "status"}\n') != b""


def test_a_place_that_cannot_be_had_is_named(place: Place, tmp_path: Path) -> None:
    """A path that is too long, a port that is taken: one sentence each with the key to change."""
    other = Listener(place.inbox, lambda body, uid: {}, _PATIENCE_S)
    with pytest.raises(RuntimeError, match=r"cannot be listened on: .*; see daemon\.socket"):
        other.listen_unix(tmp_path / ("x" * 120))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RuntimeError, match=rf":{port} cannot be .*; see daemon\.listen"):
            other.listen_tcp("127.0.0.1", port)
    other.close()


def test_a_dead_daemons_socket_is_replaced_and_ours_goes_with_us(tmp_path: Path) -> None:
    """A SIGKILL leaves a socket at which nobody answers."""
    path = tmp_path / "daemon.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    place = Place(path)
    assert place.ask(b'{"ask": "status"}\n') != b""
    place.listener.close()
    assert not path.exists()
