"""The common picture of all servers, where a cloud's machines do not agree on the time."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.api.states import Server
from backfill.drivers.openstack.settings import Patience
from backfill.ports.errors import DriverError
from tests.component.test_openstack_asking import LATE_S, MemoryLink

LIST = "/servers/detail"


def server(status: str, second: int, *, task: str | None = None) -> Server:
    return {
        "id": "u1",
        "name": "vn1",
        "metadata": {"backfill_cluster": "c1"},
        "status": status,
        "OS-EXT-STS:task_state": task,
        "updated": f"2026-11-22T02:59:{second}Z",
    }


class TwoViews(MemoryLink):
    """What lists show, and what a server shows by itself."""

    def __init__(self, *servers: Server) -> None:
        super().__init__()
        self.show(*servers)

    def show(self, *servers: Server) -> None:
        """By lists and by themselves."""
        self.pages |= {f"/servers/{s['id']}": {"server": s} for s in servers}
        self.list(*servers)

    def list(self, *servers: Server) -> None:
        self.pages[LIST] = {"servers": list(servers)}


@pytest.mark.parametrize("full_s", [0, 60])
def test_a_server_is_not_held_to_the_clock_that_is_ahead(full_s: int) -> None:
    """Nova's API notes that it pauses it, its conductor that it has; the conductor's clock is behind.

    Its pause would never be seen, and its job given back to the queue for that.
    """
    link = TwoViews(server("ACTIVE", 10))
    board = Board(link, "c1", Patience(full_s=full_s, poll_s=0))
    board.fresh()
    link.show(server("ACTIVE", 30, task="pausing"))
    board.fresh()
    link.show(server("PAUSED", 28))
    assert board.fresh()["u1"]["status"] == "PAUSED"
    asked = len(link.asked)
    assert board.fresh()["u1"]["status"] == "PAUSED"
    assert len(link.asked) == asked + 1  # and nobody asks for it alone again


def test_a_list_that_lags_is_not_believed_against_the_server_itself() -> None:
    """It was made from a copy of the database that is behind."""
    link = TwoViews(server("ACTIVE", 30))
    board = Board(link, "c1", Patience(poll_s=0))
    board.fresh()
    link.list(server("BUILD", 10))
    assert board.fresh()["u1"]["status"] == "ACTIVE"
    del link.pages["/servers/u1"]
    assert board.fresh()["u1"]["status"] == "ACTIVE"


def test_what_changes_while_a_long_list_is_made_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cloud's date is that of the end, and what a list shows is from its beginning."""
    now = [1000.0]
    monkeypatch.setattr("backfill.drivers.openstack.api.board.time.monotonic", lambda: now[0])
    asked: list[dict[str, Any]] = []

    class SlowLink(TwoViews):
        """Needs 40 s for a list."""

        def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
            asked.append(query)
            now[0] += 40.0
            return Answer(self.pages[path], "Sun, 22 Nov 2026 03:00:40 GMT")

    board = Board(SlowLink(server("ACTIVE", 10)), "c1", Patience(poll_s=0))
    board.fresh()
    board.fresh()
    assert asked[1]["changes-since"] == "2026-11-22T02:59:50Z"


def test_a_reading_that_breaks_off_leaves_nobody_an_old_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it would take the one from before for a new one."""
    link = TwoViews(server("ACTIVE", 10))
    board = Board(link, "c1", Patience(poll_s=0))
    board.fresh()
    reading, broken = threading.Event(), threading.Event()

    def broken_get(*_given: object, **_query: str) -> Answer:
        reading.set()
        assert broken.wait(LATE_S)
        raise ArithmeticError("nobody foresaw this")

    monkeypatch.setattr(link, "get", broken_get)
    found: list[BaseException] = []

    def read() -> None:
        try:
            board.fresh()
        except (ArithmeticError, DriverError) as error:
            found.append(error)

    first = threading.Thread(target=read)
    first.start()
    assert reading.wait(LATE_S)
    began_s = board._began_s
    broken.set()
    first.join(LATE_S)
    assert board._began_s > began_s
    with pytest.raises(DriverError, match="reading cloud east broke off"):
        board._outcome()
    assert len(found) == 1
