"""The sockets on which hooks and people reach the daemon."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

from backfill.core.model.quantities import MOST_NODES, parse_hostlist
from backfill.engine.connection_limiter import (
    MOST_ANSWERS_KEPT,
    MOST_KEPT_FOR_ONE,
    TOO_MANY,
    ConnectionLimiter,
    CrowdedError,
    Refused,
    Trust,
    Turns,
    trusted,
    user_told,
)
from backfill.engine.messages import HookCall, HookGone, Message

_LOG = logging.getLogger("backfill.listener")
# Bytes of a line: of a hook's with the nodes of the largest cluster, of a stranger's question, and
# of what another machine may say, which is the name of its own node.
_LONGEST_LINE, _LONGEST_QUESTION, _LONGEST_FROM_AFAR = 1 << 20, 1 << 16, 4096
_LARGEST_ANSWER = 1 << 26
_LONGEST_JOB_NUMBER = 10  # digits: Slurm's are of 32 bits
_PRIVILEGED = 1024
# A client has so long to say its line, however it does it.
_LINE_WITHIN_S = 10.0
# When no client can be taken (no descriptor or thread is left), the next try comes after this.
_REST_S = 0.05

_ELSEWHERE = "see daemon.socket in the policy file"
_NOT_YET_MADE = "systemd makes its directory when the unit starts, or see daemon.socket in the policy file"
_ONE_TOO_MANY = json.dumps({"error": TOO_MANY, "kind": "busy"}).encode() + b"\n"

Answerer = Callable[[dict[str, object], int], dict[str, object]]


class Listener:
    """Accepts hooks (one line each way) and questions (one JSON object each way).

    A hook on this machine speaks over the unix socket and is trusted by its user id. A hook on a
    host speaks over TCP: it must come from a privileged port, which only root of that machine can
    use, and is believed only about the one node that lives at the address it comes from.
    """

    def __init__(
        self,
        inbox: SimpleQueue[Message],
        answer: Answerer,
        hook_wait_s: float,
        trust: Trust | None = None,
        refused: Refused | None = None,
    ) -> None:
        self._inbox = inbox
        self._answer = answer
        self._hook_wait_s = hook_wait_s
        self._servers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._paths: list[Path] = []
        self._trust = trust or Trust()
        self._refused = refused if refused is not None else Refused()
        strangers = Turns(MOST_ANSWERS_KEPT, each=MOST_KEPT_FOR_ONE)
        self._turns = {False: strangers, True: Turns(MOST_ANSWERS_KEPT)}
        self._crowds = Refused()  # who was turned away for another reason
        self._limiter = ConnectionLimiter(trust=self._trust)
        self._closing = threading.Event()

    def listen_unix(self, path: Path) -> None:
        """Listen on a unix socket; a stale one is replaced, a living daemon's is not.

        RuntimeError, one sentence, where that cannot be.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                _refuse_living(path)
                path.unlink()
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._servers.append(server)
            server.bind(str(path))
            self._paths.append(path)
            path.chmod(0o666)  # everybody may ask; who may act is told by SO_PEERCRED
        except OSError as error:
            remedy = _NOT_YET_MADE if isinstance(error, PermissionError) else _ELSEWHERE
            why = error.strerror or error
            raise RuntimeError(f"{path} cannot be listened on: {why}; {remedy}") from error
        self._serve(server)

    def listen_tcp(self, address: str, port: int) -> None:
        """Listen for hooks on the hosts."""
        try:
            server = socket.create_server((address, port), backlog=256)
            self._servers.append(server)
        except OSError as error:
            raise RuntimeError(
                f"{address}:{port} cannot be listened on: {error.strerror or error}; see "
                "daemon.listen in the policy file"
            ) from error
        self._serve(server)

    def close(self) -> None:
        """Stop listening, take our socket away, and wait for the threads that did: a close alone
        does not wake them, and the number of the closed socket may soon mean another one."""
        self._closing.set()
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5.0)
        for server in self._servers:
            server.close()
        for path in self._paths:  # ours alone: another daemon may be at the one we were refused
            path.unlink(missing_ok=True)

    # --- inside --------------------------------------------------------------------------------

    def _serve(self, server: socket.socket) -> None:
        server.listen(256)
        thread = threading.Thread(target=self._accept, args=(server,), daemon=True, name="accept")
        self._threads.append(thread)
        thread.start()

    def _accept(self, server: socket.socket) -> None:
        """Take clients until we close, whatever becomes of a single one: hooks come after it."""
        told = False
        while not self._closing.is_set():
            try:
                client, _ = server.accept()
                self._let_in(client)
                told = False
            except (OSError, RuntimeError) as error:  # the latter: no thread can be started
                if not told and not self._closing.is_set():
                    _LOG.error("no client can be let in (%s); trying again all the time", error)
                told = True
                self._closing.wait(_REST_S)

    def _let_in(self, client: socket.socket) -> None:
        """Talk with the client in a thread of its own; one too many is hung up on."""
        try:
            uid, address = _peer(client)
        except OSError:
            client.close()  # it has gone already
            return
        if address and uid != 0:  # nothing that it could say would be heard
            self._turn_away(f"a hook from {address}, by a port that is not a privileged one")
            client.close()
            return
        if not self._limiter.admit(uid, address):
            who = address or f"uid {uid}"  # its name may take long to find, and a hook may come next
            self._turn_away(f"{who} was turned away: too many at once", hook=bool(address))
            with client, contextlib.suppress(OSError):
                client.sendall(_ONE_TOO_MANY)  # so little never waits
            return
        try:
            talk = threading.Thread(target=self._talk, args=(client, uid, address), daemon=True, name="talk")
            talk.start()
        except RuntimeError:  # no thread is left
            self._limiter.leave(uid, address)
            client.close()
            raise

    def _turn_away(self, why: str, *, hook: bool = True, detail: str = "") -> None:
        """Remember a hook that is not believed; the log gets one line a minute for each reason."""
        book = self._refused if hook else self._crowds
        if book.note(why, time.time()):
            what = "a client was turned away: " if hook else ""
            _LOG.warning("%s%s", what, f"{why}: {detail}" if detail else why)

    def _talk(self, client: socket.socket, uid: int, address: str) -> None:
        with client:
            try:
                line = _read_line(client, _longest(uid, address, self._trust))
                if line.startswith(b"backfill1 "):
                    self._hook(client, line.decode("utf-8", "replace"), uid, address)
                elif line:
                    self._question(client, line, uid, address)
            except (OSError, ValueError, RecursionError) as error:
                who = address or user_told(uid)
                self._turn_away(f"a client was turned away ({who})", hook=False, detail=str(error))
            finally:
                self._limiter.leave(uid, address)

    def _hook(self, client: socket.socket, line: str, uid: int, address: str) -> None:
        """Pass the call on; the daemon's thread itself sends the answer, which saves a switch."""

        def reply(answer: str) -> None:
            try:
                client.sendall(answer.encode() + b"\n")
            except OSError as error:
                _LOG.warning("the hook of job %s did not wait: %s", call.job_id, error)

        if not address and not self._trust.hook(uid):
            why = f"hooks run by {user_told(uid)} are not believed, only those of {self._trust.told()}"
            self._turn_away(why)
            with contextlib.suppress(OSError):
                client.sendall(f"no {why}\n".encode())  # the hook writes it into its log
            return
        try:
            call = parse_hook(line, address, reply)
        except ValueError as error:
            who = f"from {address}" if address else f"run by {user_told(uid)}"
            self._turn_away(f"a hook {who}, whose line makes no sense", detail=str(error))
            return
        self._inbox.put(call)
        if call.event == "allocated":
            client.settimeout(self._hook_wait_s)
            try:
                client.recv(1)  # a hook sends nothing more: this returns when it has hung up
            finally:
                self._inbox.put(HookGone(call))

    def _question(self, client: socket.socket, line: bytes, uid: int, address: str) -> None:
        if address:
            raise ValueError("a question came over TCP, where only hooks are heard")
        body = json.loads(line)
        if not isinstance(body, dict):
            raise ValueError("a question must be a JSON object")  # noqa: TRY004 - one error kind
        try:
            # The answer is kept until the client has taken it, which may be never.
            with self._turns[trusted(uid)].taken(_LINE_WITHIN_S, uid):
                client.sendall(encoded(self._answer(body, uid)))
        except CrowdedError:
            client.sendall(_ONE_TOO_MANY)


def parse_hook(line: str, peer: str, reply: Callable[[str], None]) -> HookCall:
    """Read a hook's line: `backfill1 allocated job=12 nodes=n[1-3] …`.

    Raises ValueError for anything else, and where a hook on a host names more than one node.
    """
    words = line.split()
    if len(words) < 3 or words[1] not in ("allocated", "ended", "arrived"):
        raise ValueError(f"not a hook's line: {line[:80]!r}")
    values = dict(word.partition("=")[::2] for word in words[2:])
    job_id = values.get("job", "")
    number = job_id.isascii() and job_id.isdigit() and len(job_id) <= _LONGEST_JOB_NUMBER
    if not number:
        raise ValueError(f"a hook's line without a job number: {line[:80]!r}")
    nodes = parse_hostlist(values.get("nodes", ""), 1 if peer else MOST_NODES)
    return HookCall(words[1], job_id, nodes, peer, reply)


def encoded(answer: dict[str, object]) -> bytes:
    """One line of JSON. Entry by entry: Python's lock is not given away while one is encoded."""
    found = bytearray()
    for piece in _pieces(answer):
        found += piece.encode()
        if len(found) > _LARGEST_ANSWER:
            problem = f"the answer would be larger than {_LARGEST_ANSWER >> 20} MiB"
            return json.dumps({"error": problem}).encode() + b"\n"
    return bytes(found + b"\n")


def _pieces(answer: dict[str, object]) -> Iterator[str]:
    comma = "{"
    for key, value in answer.items():
        yield f"{comma}{json.dumps(key)}: "
        comma = ", "
        if isinstance(value, list) and value:
            yield from (("," if at else "[") + json.dumps(entry) for at, entry in enumerate(value))
            yield "]"
        else:
            yield json.dumps(value)
    yield "}" if answer else "{}"


def _longest(uid: int, address: str, trust: Trust) -> int:
    """Return the longest line that this client may send."""
    if address:
        return _LONGEST_FROM_AFAR
    return _LONGEST_LINE if trust.hook(uid) else _LONGEST_QUESTION


def _read_line(client: socket.socket, longest: int) -> bytes:
    data = bytearray()
    limit_s = time.monotonic() + _LINE_WITHIN_S
    while not data.endswith(b"\n"):
        left_s = limit_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"it did not say its line within {_LINE_WITHIN_S:g} s")
        client.settimeout(left_s)
        piece = client.recv(min(65536, longest + 1 - len(data)))
        if not piece:
            break
        data += piece
        if len(data) > longest:
            raise ValueError(f"a line of more than {longest} bytes")
    client.settimeout(_LINE_WITHIN_S)  # the answer has as long again
    return bytes(data.strip())


def _peer(client: socket.socket) -> tuple[int, str]:
    """Return the user at the other end, and its address if that is another machine.

    Over TCP it is root by a privileged port, and -1 for everybody else.
    """
    if client.family == socket.AF_UNIX:
        return _peer_uid(client), ""
    address, port = client.getpeername()[:2]
    return (0 if port < _PRIVILEGED else -1), str(address)


def _peer_uid(client: socket.socket) -> int:
    data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])


def _refuse_living(path: Path) -> None:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except OSError:
        return
    finally:
        probe.close()
    raise RuntimeError(f"another daemon answers on {path}; stop it first")
