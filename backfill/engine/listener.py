"""The sockets on which hooks and people reach the daemon."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from backfill.core.quantities import parse_hostlist
from backfill.engine.doorkeeper import Doorkeeper, trusted
from backfill.engine.messages import HookCall, HookGone, Message

_LOG = logging.getLogger("backfill.listener")
_LONGEST_LINE = 1 << 20
_PRIVILEGED = 1024
# A client has so long to say its line, however it does it.
_LINE_WITHIN_S = 10.0
# When no client can be taken (no descriptor or thread is left), the next try comes after this.
_REST_S = 0.05

_ONE_TOO_MANY = b'{"error": "too many questions at once; ask again in a moment"}\n'

Answerer = Callable[[dict[str, object], int], dict[str, object]]


class Listener:
    """Accepts hooks (one line each way) and questions (one JSON object each way).

    A hook on this machine speaks over the unix socket and is trusted by its user id. A hook on a
    host speaks over TCP: it must come from a privileged port, which only root of that machine can
    use, and is believed only about nodes that live at the address it comes from.
    """

    def __init__(self, inbox: SimpleQueue[Message], answer: Answerer, hook_wait_s: float) -> None:
        self._inbox = inbox
        self._answer = answer
        self._hook_wait_s = hook_wait_s
        self._servers: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._paths: list[Path] = []
        self._door = Doorkeeper()
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
            raise RuntimeError(
                f"{path} cannot be listened on: {error.strerror or error}; see daemon.socket in "
                "the policy file"
            ) from error
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
            uid = _peer_uid(client)
        except OSError:
            client.close()  # it has gone already
            return
        if not self._door.admit(uid):
            _LOG.warning("user %d was turned away: too many questions at once", uid)
            with client, contextlib.suppress(OSError):
                client.sendall(_ONE_TOO_MANY)  # so little never waits
            return
        try:
            talk = threading.Thread(target=self._talk, args=(client, uid), daemon=True, name="talk")
            talk.start()
        except RuntimeError:  # no thread is left
            self._door.leave(uid)
            client.close()
            raise

    def _talk(self, client: socket.socket, uid: int) -> None:
        with client:
            try:
                line = _read_line(client)
                if line.startswith(b"backfill1 "):
                    self._hook(client, line.decode("utf-8", "replace"))
                elif line:
                    self._question(client, line)
            except (OSError, ValueError, RecursionError) as error:
                _LOG.warning("a client was turned away: %s", error)
            finally:
                self._door.leave(uid)

    def _hook(self, client: socket.socket, line: str) -> None:
        """Pass the call on; the daemon's thread itself sends the answer, which saves a switch."""

        def reply(answer: str) -> None:
            try:
                client.sendall(answer.encode() + b"\n")
            except OSError as error:
                _LOG.warning("the hook of job %s did not wait: %s", call.job_id, error)

        call = parse_hook(line, _trusted_peer(client), reply)
        self._inbox.put(call)
        if call.event == "allocated":
            client.settimeout(self._hook_wait_s)
            try:
                client.recv(1)  # a hook sends nothing more: this returns when it has hung up
            finally:
                self._inbox.put(HookGone(call))

    def _question(self, client: socket.socket, line: bytes) -> None:
        if client.family != socket.AF_UNIX:
            raise ValueError("a question came over TCP, where only hooks are heard")
        body = json.loads(line)
        if not isinstance(body, dict):
            raise ValueError("a question must be a JSON object")  # noqa: TRY004 - one error kind
        uid = _peer_uid(client)
        client.sendall(json.dumps(self._answer(body, uid)).encode() + b"\n")


def parse_hook(line: str, peer: str, reply: Callable[[str], None]) -> HookCall:
    """Read a hook's line: `backfill1 allocated job=12 nodes=n[1-3] …`.

    Raises ValueError for anything else.
    """
    words = line.split()
    if len(words) < 3 or words[1] not in ("allocated", "ended", "arrived"):
        raise ValueError(f"not a hook's line: {line[:80]!r}")
    values = dict(word.partition("=")[::2] for word in words[2:])
    job_id = values.get("job", "")
    if not job_id.isdigit():
        raise ValueError(f"a hook's line without a job number: {line[:80]!r}")
    return HookCall(words[1], job_id, parse_hostlist(values.get("nodes", "")), peer, reply)


def _read_line(client: socket.socket) -> bytes:
    data = b""
    limit_s = time.monotonic() + _LINE_WITHIN_S
    while not data.endswith(b"\n"):
        left_s = limit_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"it did not say its line within {_LINE_WITHIN_S:g} s")
        client.settimeout(left_s)
        piece = client.recv(65536)
        if not piece:
            break
        data += piece
        if len(data) > _LONGEST_LINE:
            raise ValueError("a line of more than 1 MiB")
    client.settimeout(_LINE_WITHIN_S)  # the answer has as long again
    return data.strip()


def _peer_uid(client: socket.socket) -> int:
    """The user at the other end; over TCP root by a privileged port, and -1 for everybody else."""
    if client.family != socket.AF_UNIX:
        return 0 if client.getpeername()[1] < _PRIVILEGED else -1
    data = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])


def _trusted_peer(client: socket.socket) -> str:
    """The address a hook may speak for; empty for this machine. ValueError: not trusted."""
    if client.family == socket.AF_UNIX:
        uid = _peer_uid(client)
        if not trusted(uid):
            raise ValueError(
                f"a hook run by user {uid}; only root and the daemon's own are believed"
            )
        return ""
    address, port = client.getpeername()[:2]
    if port >= _PRIVILEGED:
        raise ValueError(f"a hook from {address} port {port}, which is not a privileged port")
    return str(address)


def _refuse_living(path: Path) -> None:
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        probe.connect(str(path))
    except OSError:
        return
    finally:
        probe.close()
    raise RuntimeError(f"another daemon answers on {path}; stop it first")
