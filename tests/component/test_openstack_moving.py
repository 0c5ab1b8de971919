"""Pause, suspend and moves where something came in between, on a link that lives in memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from openstack import exceptions as sdk

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.api.states import HOST, POWER, RESTORED, Server, state_of
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.servers.moving import cancel, migrate, suspend, thaw
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import BadOutputError, BusyError, NotFoundError
from tests.component.test_openstack_asking import MemoryLink
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


class GatewayLink(ActingLink):
    """A gateway answers every action with an error; `heard`: after Nova has begun with it."""

    def __init__(self, status: str, *, code: int = 503, heard: bool = False) -> None:
        super().__init__(status)
        self.code, self.heard, self.sent = code, heard, list[str]()

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        self.sent += body
        if self.heard:
            self.server["status"] = "ACTIVE"
        raise sdk.HttpException(message="the gateway is overloaded", http_status=self.code)

    def pause_before(self, attempt: int, rest_s: float = 0.0) -> None:
        """Nobody waits in a test."""


@pytest.mark.parametrize("code", [429, 503])
@pytest.mark.parametrize(("status", "what"), [("PAUSED", "unpause"), ("SUSPENDED", "resume")])
def test_what_lets_a_server_run_is_sent_once(status: str, what: str, code: int) -> None:
    """A minute later its job may have begun elsewhere: whoever wants it again asks the fence again."""
    link = GatewayLink(status, code=code)
    link.server["metadata"][RESTORED] = "1"
    with pytest.raises(BusyError, match=f"vn1: Nova was asked to {what} it, and shows no sign"):
        thaw(cloud_of(link), "east", "vn1", time.monotonic())
    assert link.sent == [what]


def test_a_thaw_whose_answer_is_lost_is_seen() -> None:
    """It was heard, and so it is done."""
    link = GatewayLink("PAUSED", heard=True)
    thaw(cloud_of(link), "east", "vn1", time.monotonic())
    assert link.sent == ["unpause"]


def test_nothing_is_let_run_by_an_old_answer_of_the_fence() -> None:
    """Until the server was found, the cloud was asked again and again."""
    link = GatewayLink("PAUSED")
    with pytest.raises(BusyError, match=r"vn1: cloud east took 60 s to report its state.*asks Slurm again"):
        thaw(cloud_of(link), "east", "vn1", time.monotonic() - 60)
    assert link.sent == []


def test_the_fence_ages_from_the_beginning_of_the_call() -> None:
    """What is asked of the cloud before counts, too."""
    link, config = GatewayLink("PAUSED"), cloud_of(ActingLink("PAUSED")).config
    config = replace(config, patience=replace(PATIENCE, fence_s=0))
    with pytest.raises(BusyError, match="its jobs may have been requeued meanwhile"):
        OpenStackProvider(config, lambda *given: link).thaw("east", "vn1")
    assert link.sent == []
