"""One persistent libvirt connection to one host: reopened when it broke, never hanging a caller.

The library has one event loop and one error handler per process; both are set up here, once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import libvirt

from backfill.drivers.libvirt.errors import translate
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.ports.errors import UnreachableError

T = TypeVar("T")
_log = logging.getLogger(__name__)


@functools.cache
def start_event_loop() -> threading.Thread:
    """Start libvirt's event loop, which keepalive and events need, and silence its stderr."""
    libvirt.registerErrorHandler(_ignore, None)
    libvirt.virEventRegisterDefaultImpl()
    thread = threading.Thread(target=_run_events, name="libvirt-events", daemon=True)
    thread.start()
    return thread


def _ignore(_context: object, _error: object) -> None:
    """Errors reach us as exceptions; libvirt would also print them."""


def _run_events() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            _log.exception("libvirt's event loop stumbled")


class Link:
    """The connection to `host`. Safe from several threads; each call runs in a thread of its own,
    because a call into the library cannot be interrupted, only left behind."""

    def __init__(
        self,
        host: str,
        uri: str,
        limits: LibvirtLimits,
        on_open: Callable[[Any], None] = lambda connection: None,
        opener: Callable[[str], Any] = libvirt.open,
    ) -> None:
        self._host, self._uri, self._limits = host, uri, limits
        self._on_open, self._opener = on_open, opener
        self._lock = threading.Lock()
        self._connection: Any = None
        self._attempt: tuple[Future[Any], float] | None = None
        self._calls = 0
        self._users: Counter[int] = Counter()  # calls under way, by the id of their connection
        self._leaving: dict[int, Any] = {}  # connections that their last call closes
        self._closed = False

    def call(self, subject: str, work: Callable[[Any], T], limit_s: float | None = None) -> T:
        """Run `work` with the open connection and return what it returns.

        Raises the typed error for a libvirt error, UnreachableError when `limit_s` is over.
        """
        limit_s = self._limits.call_s if limit_s is None else limit_s
        connection = self._borrow(subject)
        try:
            ended = functools.partial(self._call_ended, connection)
            return self._start(lambda: work(connection), ended).result(limit_s)
        except TimeoutError:
            self._drop(connection)
            raise UnreachableError(
                subject,
                f"libvirt on {self._host} did not answer within {limit_s:g} s",
                f"check libvirtd on {self._host}",
            ) from None
        except libvirt.libvirtError as error:
            raise translate(error, subject, self._host) from error

    @property
    def connected(self) -> bool:
        """Return True if the connection is open at this moment; asks nobody."""
        with self._lock:
            return self._connection is not None and bool(self._connection.isAlive())

    def close(self) -> None:
        """Give the connection back; later calls fail."""
        with self._lock:
            self._closed = True
        self._drop(self._connection)

    def _borrow(self, subject: str) -> Any:
        """Return the open connection, kept open until `_call_ended`."""
        while True:
            connection = self._connected(subject)
            with self._lock:
                if connection is not self._connection:
                    continue  # it was dropped meanwhile
                if self._calls >= self._limits.stuck_calls:
                    raise UnreachableError(
                        subject,
                        f"{self._calls} calls to {self._host} wait for an answer",
                        f"check libvirtd on {self._host}",
                    )
                self._calls += 1
                self._users[id(connection)] += 1
                return connection

    def _connected(self, subject: str) -> Any:
        with self._lock:
            if self._closed:
                raise UnreachableError(subject, f"the connection to {self._host} is closed")
            if self._connection is not None and self._connection.isAlive():
                return self._connection
            if self._attempt is None:
                deadline_s = time.monotonic() + self._limits.connect_s
                self._attempt = (self._start(self._open), deadline_s)
            attempt, deadline_s = self._attempt
        try:
            return attempt.result(max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            problem = f"no connection within {self._limits.connect_s:g} s"
        except libvirt.libvirtError as error:
            problem = " ".join(str(error).split())
        raise UnreachableError(
            subject,
            f"cannot reach libvirt on {self._host} ({self._uri}): {problem}",
            f"check that libvirtd runs on {self._host} and listens",
        )

    def _open(self) -> Any:
        try:
            start_event_loop()
            connection = self._opener(self._uri)
            # A transport without keepalive (the test driver) is in this process: it cannot hang.
            with contextlib.suppress(libvirt.libvirtError):
                connection.setKeepAlive(self._limits.keepalive_s, self._limits.keepalive_count)
            self._on_open(connection)
        except BaseException:
            with self._lock:
                self._attempt = None
            raise
        with self._lock:
            old, self._connection, self._attempt = self._connection, connection, None
            closed = self._closed
        self._drop(connection if closed else old)
        return connection

    def _drop(self, connection: Any) -> None:
        """Forget `connection` and close it in the background: closing asks the other side.

        Not under a call: the library frees what the call still uses, which ends the whole process,
        and it fails all others of the connection. Keepalive ends what no answer comes to.
        """
        with self._lock:
            if self._connection is connection:
                self._connection = None
            if connection is not None and self._users[id(connection)]:
                self._leaving[id(connection)] = connection
                return
        if connection is not None:
            self._start(lambda: _close_quietly(connection))

    def _call_ended(self, connection: Any) -> None:
        with self._lock:
            self._calls -= 1
            self._users[id(connection)] -= 1
            last = not self._users[id(connection)]
            if last:
                del self._users[id(connection)]
            leaving = self._leaving.pop(id(connection), None) if last else None
        if leaving is not None:
            self._start(lambda: _close_quietly(leaving))

    def _start(self, work: Callable[[], T], at_end: Callable[[], None] = lambda: None) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            try:
                value = work()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                at_end()
                future.set_exception(error)
            else:
                at_end()
                future.set_result(value)

        threading.Thread(target=run, name=f"libvirt-{self._host}", daemon=True).start()
        return future


def _close_quietly(connection: Any) -> None:
    with contextlib.suppress(libvirt.libvirtError):
        connection.close()
