"""The libvirt driver's connection: reopened when it broke, never hanging its caller."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import libvirt
import pytest

from backfill.drivers.libvirt.connection.link import Link
from backfill.drivers.libvirt.errors import kind_of, translate
from backfill.drivers.libvirt.settings import LibvirtLimits
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

PATIENT = LibvirtLimits(connect_s=20, call_s=20, stuck_calls=2)
SOON_S = 0.05  # for what never answers


class Host:
    """A libvirtd that can be down, slow or dead."""

    def __init__(self) -> None:
        self.opened: list[Connection] = []
        self.down = False
        self.hold = threading.Event()
        self.hold.set()
        self.tried = 0
        self.now_s = 0.0

    def open(self, uri: str) -> Connection:
        hold = self.hold
        self.tried += 1
        hold.wait(30)
        if self.down:
            raise libvirt.libvirtError(f"connection to {uri} refused")
        self.opened.append(Connection())
        return self.opened[-1]


class Connection:
    def __init__(self) -> None:
        self.alive, self.closed = True, threading.Event()

    def isAlive(self) -> int:  # noqa: N802 - libvirt's own name
        return int(self.alive)

    def setKeepAlive(self, interval_s: int, count: int) -> int:  # noqa: N802 - libvirt's own name
        assert interval_s * count > 0
        return 0

    def close(self) -> int:
        self.closed.set()
        return 0


@pytest.fixture
def host() -> Iterator[Host]:
    made = Host()
    yield made
    made.hold.set()


def link(host: Host, limits: LibvirtLimits = PATIENT, now_s: Callable[[], float] = time.monotonic) -> Link:
    return Link("hv1", "qemu+tcp://hv1/system", limits, opener=host.open, now_s=now_s)


def hangs(made: Link, host: Host) -> None:
    """Call once while no attempt to open the connection comes to an end."""
    with pytest.raises(UnreachableError, match=r"no connection within 0\.05 s"):
        made.call("vn1", lambda connection: None)
    _until(lambda: host.tried > 0)


def test_one_connection_serves_all_calls(host: Host) -> None:
    """It is opened by the first call and kept."""
    made = link(host)
    before = made.connected
    assert [made.call("vn1", lambda connection: connection) for _ in range(3)] == host.opened * 3
    assert (before, made.connected) == (False, True)
    assert len(host.opened) == 1


def test_a_broken_connection_is_replaced(host: Host) -> None:
    """libvirtd was restarted: the next call opens anew and the old connection is closed."""
    made = link(host)
    made.call("vn1", lambda connection: None)
    host.opened[0].alive = False
    assert not made.connected
    made.call("vn1", lambda connection: None)
    assert len(host.opened) == 2
    assert host.opened[0].closed.wait(60)


def test_a_host_that_is_down_is_unreachable_and_comes_back(host: Host) -> None:
    """The error names the host, the address and what to do."""
    made = link(host)
    host.down = True
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"vn1: .*hv1.*refused.*check that libvirtd"):
            made.call("vn1", lambda connection: None)
    host.down = False
    assert made.call("vn1", lambda connection: 7) == 7


def test_a_silent_host_costs_its_limit_once(host: Host) -> None:
    """Whoever comes while an attempt hangs waits no longer than the first did."""
    made = link(host, replace(PATIENT, connect_s=SOON_S), lambda: host.now_s)
    host.hold.clear()
    for _ in range(2):
        hangs(made, host)
        host.now_s = SOON_S
    host.hold.set()
    _until(lambda: made.connected)
    assert len(host.opened) == 1


def test_an_attempt_that_hangs_is_given_up(host: Host) -> None:
    """libvirtd stood still and never answers that one: the next finds the host, and the first is closed."""
    made = link(host, replace(PATIENT, connect_s=SOON_S), lambda: host.now_s)
    host.hold.clear()
    hangs(made, host)
    first, host.hold = host.hold, threading.Event()
    host.hold.set()
    host.now_s += 2 * SOON_S
    _until(lambda: _answers(made))
    first.set()
    _until(lambda: len(host.opened) == 2)
    assert host.opened[1].closed.wait(60)
    assert made.call("vn1", lambda connection: connection) is host.opened[0]


def test_attempts_that_hang_become_rarer_and_stay_few(host: Host) -> None:
    """Each doubles the time to the next, and with too many of them no further one is made."""
    made = link(host, replace(PATIENT, connect_s=SOON_S), lambda: host.now_s)
    host.hold.clear()
    begun = []
    for _ in range(20):
        hangs(made, host)
        begun.append(made._attempt)
        host.now_s += SOON_S
    at = [begun.index(attempt) for attempt in dict.fromkeys(begun)]
    assert at == [0, 2, 5]
    _until(lambda: host.tried == 1 + PATIENT.stuck_calls)
    host.hold.set()
    _until(lambda: _answers(made))
    _until(lambda: sum(not one.closed.is_set() for one in host.opened) == 1)


def test_a_call_that_hangs_is_left_behind(host: Host) -> None:
    """Its caller goes on, and the connection that it hangs in is given up when it ends."""
    made, release = link(host), threading.Event()
    with pytest.raises(UnreachableError, match=r"did not answer within 0\.05 s"):
        made.call("vn1", lambda connection: release.wait(30), limit_s=SOON_S)
    assert made.call("vn1", lambda connection: 7) == 7
    assert len(host.opened) == 2
    assert not host.opened[0].closed.is_set()
    release.set()
    assert host.opened[0].closed.wait(60)


def test_the_number_of_calls_left_behind_is_limited(host: Host) -> None:
    """A host that swallows calls does not collect threads without end; it recovers."""
    made, release = link(host), threading.Event()
    for _ in range(PATIENT.stuck_calls):
        with pytest.raises(UnreachableError):
            made.call("vn1", lambda connection: release.wait(30), limit_s=SOON_S)
    with pytest.raises(UnreachableError, match="2 calls to hv1 were given up"):
        made.call("vn1", lambda connection: 7)
    release.set()
    _until(lambda: _answers(made))


def test_calls_that_take_their_time_refuse_nobody(host: Host) -> None:
    """Somebody waits for each of them still: a pause is not refused beside long saves."""
    made, goes_on = link(host), threading.Event()
    begun = threading.Semaphore(0)

    def slow(connection: Connection) -> bool:
        begun.release()
        return goes_on.wait(30)

    with ThreadPoolExecutor() as callers:
        saves = [callers.submit(made.call, "vn1", slow) for _ in range(2 * PATIENT.stuck_calls)]
        assert all(begun.acquire(timeout=60) for _ in saves)
        paused = made.call("vn2", lambda connection: 7)
        goes_on.set()
        assert all(save.result() for save in saves)
    assert paused == 7


def test_a_limit_of_its_own(host: Host) -> None:
    """Long work may take longer than an ordinary call."""
    made, release = link(host, replace(PATIENT, call_s=SOON_S)), threading.Event()
    threading.Timer(0.1, release.set).start()
    assert made.call("vn1", lambda connection: release.wait(30), limit_s=20)


def test_after_closing_nothing_works(host: Host) -> None:
    """The connection is given back, and no call opens it again."""
    made = link(host)
    made.call("vn1", lambda connection: None)
    made.close()
    assert host.opened[0].closed.wait(60)
    with pytest.raises(UnreachableError, match="closed"):
        made.call("vn1", lambda connection: None)


def test_no_connection_is_closed_under_a_call(host: Host) -> None:
    """The library frees what a call still uses, and fails the connection's other calls."""
    made = link(host, replace(PATIENT, stuck_calls=3))
    begun, goes_on = threading.Event(), threading.Event()

    def slow(connection: Connection) -> bool:
        begun.set()
        goes_on.wait(30)
        return connection.closed.is_set()

    found: list[bool] = []
    caller = threading.Thread(target=lambda: found.append(made.call("vn1", slow)))
    caller.start()
    assert begun.wait(30)
    with pytest.raises(UnreachableError):
        made.call("vn2", lambda connection: goes_on.wait(30), limit_s=SOON_S)  # drops the connection
    made.call("vn3", lambda connection: None)
    assert len(host.opened) == 2
    made.close()
    goes_on.set()
    caller.join(30)
    assert found == [False]
    for connection in host.opened:
        assert connection.closed.wait(30)


def test_driver_errors_pass_through(host: Host) -> None:
    """What the work itself found out is not dressed up."""

    def work(connection: Any) -> None:
        raise NotFoundError("vn1", "is not there")

    with pytest.raises(NotFoundError, match=r"^vn1: is not there$"):
        link(host).call("vn1", work)


@pytest.mark.parametrize(
    ("code", "domain", "text", "expected"),
    [
        (libvirt.VIR_ERR_NO_DOMAIN, 0, "", NotFoundError),
        (libvirt.VIR_ERR_OPERATION_INVALID, 0, "domain is not running", BusyError),
        (libvirt.VIR_ERR_OPERATION_TIMEOUT, 0, "state change lock", BusyError),
        (libvirt.VIR_ERR_AGENT_UNRESPONSIVE, 0, "", UnreachableError),
        (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_RPC, "Connection reset", UnreachableError),
        (libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_FROM_RPC, "socket closed", UnreachableError),
        (libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_FROM_QEMU, "Permission denied", DriverError),
        (libvirt.VIR_ERR_OPERATION_FAILED, 0, "x: No space left on device", NoCapacityError),
        (libvirt.VIR_ERR_INTERNAL_ERROR, 0, "cannot set up guest memory", NoCapacityError),
        (libvirt.VIR_ERR_OPERATION_FAILED, 0, "domain 'a' already exists", AlreadyThereError),
        (libvirt.VIR_ERR_INTERNAL_ERROR, 0, "paused due to previous migration", BusyError),
        (libvirt.VIR_ERR_CONFIG_UNSUPPORTED, 0, "", RefusedError),
        (libvirt.VIR_ERR_OPERATION_FAILED, 0, "something else", DriverError),
        (0, 0, "virDomainIsActive() failed", UnreachableError),
        (0, 0, "already exists", UnreachableError),
    ],
)
def test_errors_are_typed(code: int, domain: int, text: str, expected: type[DriverError]) -> None:
    """The code decides; where it only says "failed", the layer and the text do."""
    assert kind_of(code, domain, text) is expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, NoCapacityError),
        (errno.EDQUOT, NoCapacityError),
        (errno.ENOMEM, NoCapacityError),
        (errno.EIO, DriverError),
        (-1, DriverError),
    ],
)
def test_errors_of_the_system_are_typed_in_every_language(number: int, expected: type[DriverError]) -> None:
    """libvirtd tells its errno; its words are of the language that it runs in."""
    error = libvirt.libvirtError("")
    code, said = libvirt.VIR_ERR_SYSTEM_ERROR, "Datei kann nicht geschrieben werden"
    error.err = (code, libvirt.VIR_FROM_QEMU, said, 2, None, None, None, number, -1)
    assert type(translate(error, "vn1", "bm2")) is expected


def test_who_went_away_in_the_middle_is_told_in_our_words() -> None:
    """Between two calls of ours it may move on by itself: the sentence is as if it had been gone before."""
    error = libvirt.libvirtError("")
    error.err = (libvirt.VIR_ERR_NO_DOMAIN, 0, "Domain not found", 2, None, None, None, -1, -1)
    found = translate(error, "vn1", "bm2")
    assert isinstance(found, NotFoundError)
    assert str(found).startswith("vn1: there is no such instance on bm2 any more: ")


def test_an_error_without_a_code_says_nothing_certain(host: Host) -> None:
    """The binding has lost libvirt's error, as it does when libvirtd dies in the middle of a call."""

    def work(connection: Any) -> None:
        raise libvirt.libvirtError("virDomainIsActive() failed")

    with pytest.raises(UnreachableError, match=r"^vn1: no answer .* hv1: virDomainIsActive\(\) failed$"):
        link(host).call("vn1", work)


def _answers(made: Link) -> bool:
    try:
        return made.call("vn1", lambda connection: True)
    except UnreachableError:
        return False


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
