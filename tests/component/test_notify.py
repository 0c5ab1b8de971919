"""The service manager hears that the daemon lives, and the daemon never waits for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.engine.notify import Heartbeat, notify
from tests.component.living_daemon import living


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The socket of a service manager, which reads when the test does."""
    path = tmp_path / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(path))
        server.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        yield server


def _heard(manager: socket.socket) -> list[str]:
    heard: list[str] = []
    while True:
        try:
            heard.append(manager.recv(4096).decode())
        except BlockingIOError:
            return heard


def _deafen(manager: socket.socket) -> None:
    """Fill its queue."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        while True:
            try:
                sock.sendto(b"", manager.getsockname())
            except BlockingIOError:
                return


def test_nobody_waits_for_a_manager_that_does_not_read(manager: socket.socket) -> None:
    """As while it reloads its units: what it misses is lost, and what comes after is heard."""
    _deafen(manager)
    notify("WATCHDOG=1")
    assert "WATCHDOG=1" not in _heard(manager)
    notify("WATCHDOG=1")
    assert _heard(manager) == ["WATCHDOG=1"]


def test_a_daemon_works_on_beside_a_deaf_manager(manager: socket.socket, tmp_path: Path) -> None:
    """It starts instances as ever, whether somebody reads its signs of life or not."""
    with living(tmp_path) as daemon:
        daemon.until(lambda: "slurm" in daemon.daemon.world.sources)
        _deafen(manager)
        low = daemon.sim.submit("htc", 5000.0, name="counting")
        daemon.until(lambda: bool(daemon.sim.job(low).nodes))
    assert "READY=1" in _heard(manager)


@pytest.mark.parametrize(("wanted_us", "signs"), [("", 11), ("60000000", 11), ("1500000", 21), ("odd", 11)])
def test_a_sign_of_life_comes_about_once_a_second(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, wanted_us: str, signs: int
) -> None:
    """More often for a manager that wants it, and never with each cycle of the daemon."""
    monkeypatch.setenv("WATCHDOG_USEC", wanted_us)
    now_s = [100.0]
    heartbeat = Heartbeat(lambda: 0.0, lambda: now_s[0])
    heard: list[str] = []
    for cycle in range(321):
        now_s[0] = 100.0 + cycle / 32
        heartbeat.beat()
        heard += _heard(manager)
    assert heard == ["WATCHDOG=1"] * signs


def test_a_daemon_that_reads_nothing_gives_no_sign_of_life(
    manager: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    """Once late is a machine that slept; what stays so is logged once. It begins again by itself."""
    now_s, late_s = [100.0], [0.0]
    heartbeat = Heartbeat(lambda: late_s[0], lambda: now_s[0])
    told: list[tuple[int, int]] = []
    for late_s[0] in (0.0, 29.0, 3600.0, 0.0, 31.0, 32.0, 33.0, 0.0):
        heartbeat.beat()
        told.append((len(_heard(manager)), len(caplog.records)))
        now_s[0] += 1.0
    assert told == [(1, 0), (1, 0), (0, 0), (1, 0), (0, 0), (0, 1), (0, 1), (1, 1)]
    assert "nothing has been read for 32 s" in caplog.text
