"""The daemon's sockets: whoever comes, however they behave, the next hook is heard."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model.quantities import MOST_NODES
from backfill.engine.connection_limiter import (
    MOST_FROM_ONE_HOST,
    MOST_KEPT_FOR_ONE,
    MOST_OF_ONE,
    ConnectionLimiter,
    Refused,
    Trust,
    user_told,
)
from backfill.engine.listener import Answerer, Listener, encoded
from backfill.engine.messages import HookCall, HookGone, Message
from backfill.ui.client import AskError, Client

_PATIENCE_S = 30.0
NOBODY = 65534


class Place:
    """A listener whose answers repeat the question, and its inbox."""

    def __init__(
        self, path: Path, trust: Trust | None = None, answer: Answerer = lambda body, uid: {"heard": body}
    ) -> None:
        self.path = path
        self.refused = Refused()
        self.inbox: SimpleQueue[Message] = SimpleQueue()
        self.listener = Listener(self.inbox, answer, _PATIENCE_S, trust, self.refused)
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
    limiter = ConnectionLimiter(most=2)
    assert [limiter.admit(NOBODY) for _ in range(3)] == [True, True, False]
    assert all(limiter.admit(uid) for uid in (0, os.getuid(), 0))
    limiter.leave(0)
    assert not limiter.admit(NOBODY)
    limiter.leave(NOBODY)
    assert limiter.admit(NOBODY)


def test_who_is_one_too_many_is_told_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that there is no daemon, however early it hung up."""
    monkeypatch.setattr("backfill.engine.listener._peer", lambda client: (NOBODY, ""))
    monkeypatch.setattr(place.listener, "_limiter", ConnectionLimiter(most=0))
    for _ in range(20):  # its question may come before the answer, or after it
        with pytest.raises(AskError, match="too many questions at once; ask again in a moment"):
            Client(str(place.path)).ask("status")


def test_one_user_who_does_not_read_leaves_answers_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many connections as a user may have, whose answers nobody takes: another user is answered."""
    uids, asked = iter([NOBODY] * MOST_OF_ONE + [NOBODY - 1]), SimpleQueue[int]()
    monkeypatch.setattr("backfill.engine.listener._peer", lambda client: (next(uids), ""))
    monkeypatch.setattr("backfill.engine.listener._LINE_WITHIN_S", 4 * _PATIENCE_S)

    def answer(body: dict[str, object], uid: int) -> dict[str, object]:
        asked.put(uid)
        return {"events": ["x" * (1 << 24)]} if uid == NOBODY else {}

    place = Place(tmp_path / "daemon.sock", answer=answer)
    with contextlib.ExitStack() as crowd:
        for _ in range(MOST_OF_ONE):
            crowd.enter_context(place.connect()).sendall(b'{"ask": "events"}\n')
        kept = [asked.get(timeout=_PATIENCE_S) for _ in range(MOST_KEPT_FOR_ONE)]
        assert json.loads(place.ask(b'{"ask": "status"}\n')) == {}
        assert kept == [NOBODY] * MOST_KEPT_FOR_ONE
        assert asked.get(timeout=_PATIENCE_S) == NOBODY - 1
    place.listener.close()


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


def test_a_directory_that_systemd_has_not_made_yet_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does `--check` of the unit's user before the unit was ever started."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    other = Listener(place.inbox, lambda body, uid: {}, _PATIENCE_S)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(RuntimeError, match="denied; systemd makes its directory when the unit starts"):
        other.listen_unix(Path("/run/backfill/daemon.sock"))
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


# --- who is believed, and how much of it ---------------------------------------------------------

SLURM, HOST = 64030, "10.0.0.7"


def calling(monkeypatch: pytest.MonkeyPatch, uid: int, address: str = "") -> None:
    """Whoever connects from now on is this user, on this machine or another."""
    monkeypatch.setattr("backfill.engine.listener._peer", lambda client: (uid, address))


def test_the_hooks_of_slurmuser_are_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how often others were not is kept for people to see; they are told so themselves."""
    trust = Trust(SLURM)
    place = Place(tmp_path / "daemon.sock", trust)
    calling(monkeypatch, SLURM)
    with place.connect() as client:
        client.sendall(b"backfill1 allocated job=7 nodes=bm1\n")
        assert isinstance(place.inbox.get(timeout=_PATIENCE_S), HookCall)
    assert isinstance(place.inbox.get(timeout=_PATIENCE_S), HookGone)
    assert place.refused.all() == []
    trust.slurm_uid = 0
    said = [place.ask(b"backfill1 allocated job=7 nodes=bm1\n") for _ in range(3)][-1]
    assert said == f"no hooks run by {user_told(SLURM)} are not believed, only those of root\n".encode()
    assert place.inbox.empty()
    (unheard,) = place.refused.all()
    assert unheard.count == 3
    assert unheard.why.startswith("hooks run by ")
    place.listener.close()


@pytest.mark.parametrize(
    "line",
    [
        b"backfill1 allocated job=7 nodes=n[1-900000]\n",
        b"backfill1 allocated job=7 nodes=bm[1-2]\n",
        b"backfill1 allocated job=7 nodes=bm1,bm2\n",
        b"backfill1 allocated job=7 nodes=bm1 partition=" + b"x" * 5000 + b"\n",
        b"backfill1 allocated job=" + b"7" * 11 + b" nodes=bm1\n",
        "backfill1 allocated job=\u0667 nodes=bm1\n".encode(),
    ],
)
def test_a_host_speaks_of_one_node_in_a_short_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    """Whatever else root of a compute node says never reaches the daemon's thread."""
    calling(monkeypatch, 0, HOST)
    with contextlib.suppress(OSError):
        assert place.ask(line) == b""
    assert place.inbox.empty()
    with place.connect() as client:
        client.sendall(b"backfill1 allocated job=7 nodes=bm1\n")
        call = place.inbox.get(timeout=_PATIENCE_S)
        assert isinstance(call, HookCall)
        assert (call.nodes, call.peer) == (("bm1",), HOST)


def test_a_local_hook_names_as_many_nodes_as_slurm_can_have(place: Place) -> None:
    """And one more is refused before any name is made."""
    with place.connect() as client:
        client.sendall(f"backfill1 ended job=7 nodes=n[1-{MOST_NODES}]\n".encode())
        call = place.inbox.get(timeout=_PATIENCE_S)
        assert isinstance(call, HookCall)
        assert len(call.nodes) == MOST_NODES
    assert place.ask(f"backfill1 ended job=7 nodes=n[0-{MOST_NODES}]\n".encode()) == b""
    assert [unheard.count for unheard in place.refused.all()] == [1]


def test_an_unprivileged_port_is_not_even_listened_to(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user of any machine could use one; it takes no thread."""
    calling(monkeypatch, -1, HOST)
    with place.connect() as client:
        assert client.recv(1) == b""


def test_nobody_is_looked_up_where_hooks_come_in(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory of users does not answer, and one of them comes too often: hooks are heard."""
    answers = threading.Event()

    def silent(uid: int) -> NoReturn:
        answers.wait(_PATIENCE_S)
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", silent)
    callers = iter([NOBODY] * (MOST_OF_ONE + 1))
    monkeypatch.setattr("backfill.engine.listener._peer", lambda client: (next(callers, 0), ""))
    with contextlib.ExitStack() as crowd:
        for _ in range(MOST_OF_ONE + 1):
            crowd.enter_context(place.connect())
        with place.connect() as client:
            client.sendall(b"backfill1 ended job=7 nodes=bm1\n")
            assert isinstance(place.inbox.get(timeout=_PATIENCE_S / 2), HookCall)
    answers.set()
    assert f"uid {NOBODY} was turned away: too many at once" in caplog.text


def test_one_host_cannot_take_all_places() -> None:
    """Nor all hosts together those of this machine."""
    limiter = ConnectionLimiter(most=2, trust=Trust(SLURM))
    assert [limiter.admit(0, HOST) for _ in range(MOST_FROM_ONE_HOST + 1)].count(False) == 1
    assert limiter.admit(0, "10.0.0.8")
    limiter.leave(0, HOST)
    assert limiter.admit(0, HOST)
    assert all(limiter.admit(SLURM) for _ in range(100))
    assert limiter.admit(NOBODY)


def test_one_user_cannot_take_all_places() -> None:
    """Another one still finds a place, until there is none for anybody."""
    limiter = ConnectionLimiter(most=3, each=2)
    assert [limiter.admit(NOBODY) for _ in range(3)] == [True, True, False]
    assert [limiter.admit(NOBODY - 1) for _ in range(2)] == [True, False]


def test_refused_hooks_are_counted_and_said_once_a_minute() -> None:
    """However many there are, and for however many reasons: the book stays short."""
    refused = Refused(most=3)
    assert [refused.note("one", now_s) for now_s in (0.0, 30.0, 59.0, 61.0)] == [True, False, False, True]
    for number in range(100):
        refused.note(f"reason {number}", 100.0 + number)
    assert [u.why for u in refused.all()] == ["reason 97", "reason 98", "reason 99"]
    assert refused.total == 104  # a number that falls would be taken for a restart


@given(
    st.dictionaries(
        st.text(), st.one_of(st.lists(st.dictionaries(st.text(), st.integers())), st.text(), st.none())
    )
)
def test_an_answer_made_in_pieces_is_the_same_json(answer: dict[str, object]) -> None:
    """On one line."""
    line = encoded(answer)
    assert json.loads(line) == answer
    assert line.count(b"\n") == 1


def test_an_answer_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be too large is a sentence."""
    monkeypatch.setattr("backfill.engine.listener._LARGEST_ANSWER", 1000)
    assert b"would be larger" in encoded({"a": ["x" * 100] * 20})
