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
from dataclasses import dataclass, field
from typing import Any, TypeVar

import libvirt

from backfill.drivers.libvirt.errors import translate
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.ports.errors import UnreachableError

T = TypeVar("T")
_log = logging.getLogger(__name__)
# Of a machine's own name, which waits for nobody as a rule.
_NAME_WITHIN_S = 3.0


@functools.cache
def start_event_loop() -> threading.Thread:
    """Start libvirt's event loop, which keepalive and events need, and silence its stderr."""
    libvirt.registerErrorHandler(_ignore, None)
    libvirt.virEventRegisterDefaultImpl()
    thread = threading.Thread(target=_run_events, name="libvirt-events", daemon=True)
    thread.start()
    return thread


def machine_name(connection: Any, within_s: float = _NAME_WITHIN_S) -> str:
    """Return the name by which the machine at the other end calls itself; empty: it does not say so in time.

    libvirtd may ask DNS for its domain, which may be down. It makes up the UUID of many machines.
    """
    told: Future[str] = Future()

    def ask() -> None:
        try:
            told.set_result(str(connection.getHostname()).lower())
        except libvirt.libvirtError:
            told.set_result("")

    threading.Thread(target=ask, name="libvirt-name", daemon=True).start()
    try:
        return told.result(within_s)
    except TimeoutError:
        return ""


def _ignore(_context: object, _error: object) -> None:
    """Errors reach us as exceptions; libvirt would also print them."""


def _run_events() -> None:
    while True:
        try:
            libvirt.virEventRunDefaultImpl()
        except libvirt.libvirtError:
            _log.exception("libvirt's event loop stumbled")


@dataclass(eq=False, slots=True)
class _Attempt:
    """One that opens the connection. Callers wait for it until `deadline_s`; the next begins at `next_s`."""

    wait_s: float
    deadline_s: float
    next_s: float
    future: Future[Any] = field(default_factory=Future)


@dataclass(eq=False, slots=True)
class _Call:
    """One that uses `connection`. `left`: its caller has given it up, and it has not ended."""

    connection: Any
    ended: bool = False
    left: bool = False


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
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._uri, self._limits = host, uri, limits
        self._on_open, self._opener, self._now_s = on_open, opener, now_s
        self._lock = threading.Lock()
        self._connection: Any = None
        self._attempt: _Attempt | None = None
        self._left = 0  # attempts and calls that were given up and have not ended
        self._users: Counter[int] = Counter()  # calls under way, by the id of their connection
        self._leaving: dict[int, Any] = {}  # connections that their last call closes
        self._closed = False

    def call(self, subject: str, work: Callable[[Any], T], limit_s: float | None = None) -> T:
        """Run `work` with the open connection and return what it returns.

        Raises the typed error for a libvirt error, UnreachableError when `limit_s` is over.
        """
        limit_s = self._limits.call_s if limit_s is None else limit_s
        call = _Call(self._borrow(subject))
        try:
            ended = functools.partial(self._call_ended, call)
            return self._start(lambda: work(call.connection), ended).result(limit_s)
        except TimeoutError:
            self._leave(call)
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
                if self._left >= self._limits.stuck_calls:
                    raise UnreachableError(
                        subject,
                        f"{self._left} calls to {self._host} were given up and have not returned",
                        f"check libvirtd on {self._host}",
                    )
                self._users[id(connection)] += 1
                return connection

    def _connected(self, subject: str) -> Any:
        with self._lock:
            if self._closed:
                raise UnreachableError(subject, f"the connection to {self._host} is closed")
            if self._connection is not None and self._connection.isAlive():
                return self._connection
            attempt = self._attempt = self._under_way()
        try:
            return attempt.future.result(max(0.0, attempt.deadline_s - self._now_s()))
        except TimeoutError:
            problem = f"no connection within {self._limits.connect_s:g} s"
        except libvirt.libvirtError as error:
            problem = " ".join(str(error).split())
        raise UnreachableError(
            subject,
            f"cannot reach libvirt on {self._host} ({self._uri}): {problem}",
            f"check that libvirtd runs on {self._host} and listens",
        )

    def _under_way(self) -> _Attempt:
        """Return the attempt to wait for: the present one, or a new one where that is given up.

        A host whose libvirtd stands still accepts connections and never answers. The library waits for
        that for ever, even if the host was switched off meanwhile. Each attempt that hangs doubles the
        time to the next, so that few are left behind.
        """
        now_s, wait_s, last = self._now_s(), self._limits.connect_s, self._attempt
        if last is not None:
            if now_s < last.next_s or self._left >= self._limits.stuck_calls:
                return last
            self._left += 1
            wait_s = 2 * last.wait_s
        deadline_s = now_s + self._limits.connect_s
        attempt = _Attempt(wait_s, deadline_s, deadline_s + wait_s)
        attempt.future = self._start(lambda: self._open(attempt))
        return attempt

    def _open(self, attempt: _Attempt) -> Any:
        try:
            start_event_loop()
            connection = self._opener(self._uri)
            # A transport without keepalive (the test driver) is in this process: it cannot hang.
            with contextlib.suppress(libvirt.libvirtError):
                connection.setKeepAlive(self._limits.keepalive_s, self._limits.keepalive_count)
            try:
                self._on_open(connection)
            except BaseException:
                self._drop(connection)
                raise
        except BaseException:
            self._attempt_ended(attempt, None)
            raise
        self._attempt_ended(attempt, connection)
        return connection

    def _attempt_ended(self, attempt: _Attempt, opened: Any) -> None:
        """Use what it opened, unless it was given up or the link is closed: then that is closed again."""
        with self._lock:
            useless = opened
            if attempt is not self._attempt:
                self._left -= 1
            else:
                self._attempt = None
                if opened is not None and not self._closed:
                    useless, self._connection = self._connection, opened
        self._drop(useless)

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

    def _leave(self, call: _Call) -> None:
        """Wait for the call no longer. Its thread stays until the library is done with it."""
        with self._lock:
            call.left = not call.ended
            self._left += call.left
        self._drop(call.connection)

    def _call_ended(self, call: _Call) -> None:
        connection = call.connection
        with self._lock:
            call.ended = True
            self._left -= call.left
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
