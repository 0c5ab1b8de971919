"""A daemon's socket as the hook sees it: it notes every request and answers as told."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from types import TracebackType


class HookDaemon:
    """Answers each request with `reply`; None: it takes the request and says nothing.

    `requests` are the lines received, `ports` the ports from which they came (0 for unix sockets).
    """

    def __init__(self, place: Path | str, reply: str | None = "ok room is free") -> None:
        self.requests: list[str] = []
        self.ports: list[int] = []
        self._reply = reply
        self._open: list[socket.socket] = []
        self._changed = threading.Condition()
        if isinstance(place, Path):
            self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._server.bind(str(place))
            self.endpoint = f"unix:{place}"
        else:
            self._server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            self._server.bind((place, 0))
            self.endpoint = f"tcp:{place}:{self._server.getsockname()[1]}"
        # A short queue, so that many hooks at once find it full; TCP would wait for a second.
        self._server.listen(1 if isinstance(place, Path) else 64)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> HookDaemon:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._server.close()
        for client in self._open:
            client.close()

    def await_requests(self, count: int) -> list[str]:
        """The requests, as soon as there are that many."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.requests) >= count, 10)
            return list(self.requests)

    def _serve(self) -> None:
        while True:
            try:
                client, address = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(client, address), daemon=True).start()

    def _talk(self, client: socket.socket, address: object) -> None:
        line = client.makefile("rb").readline().decode()
        with self._changed:
            self.ports.append(address[1] if isinstance(address, tuple) else 0)
            self.requests.append(line)
            self._open.append(client)
            self._changed.notify_all()
        if self._reply is not None:
            try:
                client.sendall(f"{self._reply}\n".encode())
            except OSError:
                return  # an epilog does not wait
            client.shutdown(socket.SHUT_WR)
