"""A proxy in front of a service that a test can let fail: late, before or after it acted."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOVA, CINDER, KEYSTONE = (8774, "v2.1"), (8776, "v3"), (5000, "v3")
_HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}
Edit = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(slots=True)
class Fault:
    """What happens to requests that match: `times` of them, then it is over.

    `status`: answer that and do not ask the service. `stall_s`: be silent for so long, or until all
    is healed, and hang up, after it has acted if `acted`. `edit`: change what it has answered.
    """

    method: str
    path: str
    times: int = 1
    status: int = 0
    stall_s: float = 0.0
    acted: bool = False
    edit: Edit | None = None
    headers: dict[str, str] = field(default_factory=dict)


class CloudProxy:
    """Listens on a port of its own; remembers every request as (method, path)."""

    def __init__(self, service: tuple[int, str] = NOVA) -> None:
        self._port, self._version = service
        self.seen: list[tuple[str, str]] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._healed = threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Tests read `seen` instead."""

            def _serve(self) -> None:
                proxy.serve(self)

            do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/{self._version}"

    def fail(self, method: str, path: str, **how: Any) -> None:
        """Let the next requests of this method whose path matches the pattern fail."""
        with self._lock:
            self._faults.append(Fault(method, path, **how))

    def heal(self) -> None:
        with self._lock:
            self._faults.clear()
            self._healed.set()
            self._healed = threading.Event()

    def count(self, method: str, path: str) -> int:
        """How many such requests have come."""
        with self._lock:
            return sum(1 for m, p in self.seen if m == method and re.search(path, p))

    def close(self) -> None:
        self.heal()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    # --- one request ---------------------------------------------------------------------------

    def serve(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(length)
        fault = self._due(request.command, request.path)
        if fault is not None and fault.status:
            self._answer(request, fault.status, fault.headers, b'{"error": {"message": "a test"}}')
            return
        if fault is not None and fault.stall_s and not fault.acted:
            self._hang_up(request, fault.stall_s)
            return
        status, headers, content = self._ask(request, body)
        if fault is not None and fault.stall_s:
            self._hang_up(request, fault.stall_s)
            return
        if fault is not None and fault.edit is not None:
            content = json.dumps(fault.edit(json.loads(content))).encode()
        self._answer(request, status, headers, content)

    def _due(self, method: str, path: str) -> Fault | None:
        with self._lock:
            self.seen.append((method, path))
            for fault in self._faults:
                if fault.times > 0 and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault
        return None

    def _ask(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, dict[str, str], bytes]:
        link = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _HOP}
        try:
            link.request(request.command, request.path, body or None, headers)
            answer = link.getresponse()
            kept = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
            return answer.status, kept, answer.read()
        finally:
            link.close()

    def _answer(
        self, request: BaseHTTPRequestHandler, status: int, headers: dict[str, str], content: bytes
    ) -> None:
        try:
            request.send_response_only(status)
            for name, value in headers.items():
                request.send_header(name, value)
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)
        except OSError:
            request.close_connection = True  # whoever asked has given up

    def _hang_up(self, request: BaseHTTPRequestHandler, stall_s: float) -> None:
        with self._lock:
            healed = self._healed
        healed.wait(stall_s)
        request.close_connection = True
