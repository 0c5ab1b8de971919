"""A daemon's socket as the hook sees it: it notes every request and answers as told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class HookDaemon:
    """Answers each request with `reply`; None: it says nothing until `answer` is called.

    `place` is a path, an IP address, or a bound TCP socket. `requests` are the lines received,
    `peers` the addresses and ports from which they came (empty and 0 for unix sockets).
    """

    def __init__(self, place: Path | str | socket.socket, reply: str | None = "ok room is free") -> None:
        self.requests: list[str] = []
        self.peers: list[tuple[str, int]] = []
        self.hangups = 0  # hooks that went away, answered or not
        self._reply = reply
        self._open: list[socket.socket] = []
        self._changed = threading.Condition()
        if isinstance(place, Path):
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._server.bind(str(place))
            place.chmod(0o666)  # as the daemon does: a hook on a controller is SlurmUser's
            self.endpoint = f"unix:{place}"
        else:
            self._server = _listener(place) if isinstance(place, str) else place
            host, port = self._server.getsockname()
            self.endpoint = f"tcp:{host}:{port}"
        # A short queue, so that many hooks at once find it full; TCP would wait for a second.
        self._server.listen(1 if isinstance(place, Path) else 64)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> HookDaemon:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening and hang up on everybody; can be repeated."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._server.close()
        for client in self._open:
            with contextlib.suppress(OSError):  # whoever serves it closes it
                client.shutdown(socket.SHUT_RDWR)

    def await_requests(self, count: int) -> list[str]:
        """The requests, as soon as there are that many."""
        self._await(lambda: len(self.requests) >= count)
        return list(self.requests)

    def await_hangups(self, count: int) -> None:
        """Return when that many hooks have gone away."""
        self._await(lambda: self.hangups >= count)

    def answer(self, reply: str) -> None:
        """Answer everybody who waits, and at once whoever comes from now on."""
        with self._changed:
            self._reply = reply
            for client in self._open:
                _send(client, reply)

    def _await(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, 60), self.requests

    def _serve(self) -> None:
        while True:
            try:
                client, address = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client, address), daemon=True).start()

    def _talk(self, client: socket.socket, address: object) -> None:
        with client, client.makefile("rb") as stream:
            line = stream.readline().decode()
            with self._changed:
                self.peers.append(address if isinstance(address, tuple) else ("", 0))
                self.requests.append(line)
                self._open.append(client)
                self._changed.notify_all()
                if self._reply is not None:
                    _send(client, self._reply)
            with contextlib.suppress(OSError):
                stream.read()  # returns when the hook has gone
        with self._changed:
            self.hangups += 1
            self._changed.notify_all()


def _listener(address: str) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.bind((address, 0))
    return server


def _send(client: socket.socket, reply: str) -> None:
    with contextlib.suppress(OSError):  # an epilog does not wait
        client.sendall(f"{reply}\n".encode())
