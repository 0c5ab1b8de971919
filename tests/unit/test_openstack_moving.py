"""Pause, suspend and moves where something came in between, on a link that lives in memory."""

from __future__ import annotations

from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.api.states import HOST, POWER, RESTORED, Server, state_of
from backfill.drivers.openstack.servers.moving import cancel, migrate, suspend
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import BadOutputError, BusyError, NotFoundError
from tests.unit.test_openstack_asking import MemoryLink
from tests.unit.test_openstack_pure import server

LIST = "/servers/detail"
PATIENCE = Patience(poll_s=0, act_s=5)


class ActingLink(MemoryLink):
    """One server `vn1`; what is asked of it happens at once."""

    def __init__(self, status: str) -> None:
        super().__init__()
        self.server: Server = server(status)
        self.pages = {
            LIST: {"servers": [self.server]},
            "/servers/u1": {"server": self.server},
            "/servers/u1/migrations": {"migrations": [{"id": 7}]},
        }

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        become = {"suspend": "SUSPENDED", "confirmResize": "SHUTOFF", "os-migrateLive": "ACTIVE"}
        self.server["status"] = become[next(iter(body))]
        return Answer({}, "")

    def delete(self, service: str, path: str, subject: str) -> None:
        if "/metadata/" in path:
            del self.server["metadata"][path.rpartition("/")[2]]
            return
        self.server["status"] = "ACTIVE"  # it arrived in this moment
        raise NotFoundError(subject, "Migration 7 for server u1 could not be found")


def cloud_of(link: MemoryLink) -> Cloud:
    places = {"east": CloudPlace("east"), "hv2": CloudPlace("east", "c2")}
    config = OpenStackConfig("c1", places, Shape(("tiny",), "nodes"), Guest("", ""), patience=PATIENCE)
    return Cloud(config, link, {"c2": "hv2"})


def test_a_move_that_ends_while_it_is_cancelled_is_over() -> None:
    """Nova knows it no more then; where the server is, the next observation tells."""
    link = ActingLink("MIGRATING")
    cancel(cloud_of(link), "east", "vn1")
    assert link.server["status"] == "ACTIVE"


def test_a_mark_that_a_crash_has_left_does_not_outlive_the_next_suspend() -> None:
    """The daemon died between Nova's resume and taking its note back: suspended is suspended."""
    link = ActingLink("ACTIVE")
    link.server["metadata"][RESTORED] = "1"
    assert suspend(cloud_of(link), "east", "vn1") == 256
    assert state_of(link.server) is InstanceState.SUSPENDED


def test_a_move_that_failed_is_told_at_once() -> None:
    """Nova gives the server back as it was, where it was: by a list and by its own word."""
    link = ActingLink("ACTIVE")
    link.server[HOST] = "c1"
    with pytest.raises(BusyError, match="Nova did not move it to hv2; it is where it was"):
        migrate(cloud_of(link), "east", "vn1", "hv2")
    assert ("/servers/u1", {}) in link.asked


def test_a_move_that_a_crash_left_unconfirmed_is_confirmed() -> None:
    """It arrived switched off, and Nova keeps the old one until it is told: the same call does."""
    link = ActingLink("VERIFY_RESIZE")
    link.server |= {HOST: "c2", POWER: 4}
    assert state_of(link.server) is InstanceState.OFF
    migrate(cloud_of(link), "east", "vn1", "hv2")
    assert link.server["status"] == "SHUTOFF"
    migrate(cloud_of(link), "east", "vn1", "hv2")


def test_a_picture_that_cannot_be_read_is_nobodys_fresh_one() -> None:
    """Whoever asks next does not get the old picture as if it had just been read."""
    link = MemoryLink()
    link.pages[LIST] = {"servers": [server()]}
    board = Board(link, "c1", Patience())
    assert len(board.fresh()) == 1
    link.pages[LIST] = {"servers": [{"status": "ACTIVE"}]}  # not even an id
    for _ in range(2):
        with pytest.raises(BadOutputError, match="servers: cloud east answered what cannot be"):
            board.fresh()
