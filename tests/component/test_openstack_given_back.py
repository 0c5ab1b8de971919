"""Room that a cloud's operator wants back: counted once, however often the deletion has to be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.states import RECLAIM, Server
from backfill.drivers.openstack.capacity import ProjectQuota, pool_room
from backfill.drivers.openstack.servers.making import delete
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import BusyError
from tests.component.test_openstack_two_lives import TwoLives
from tests.unit.test_openstack_pure import server

LATER_S = 1.0
USED = Resources(3, 1536)  # all of it by us
QUOTA = ProjectQuota(Resources(8, 4096), USED, 5, 0.0, ours=USED, count=3)


class LockedCloud(TwoLives):
    """Nova refuses every deletion while `locked`, as where an admin has locked the server."""

    locked = True

    def delete(self, service: str, path: str, subject: str) -> None:
        if self.locked:
            raise BusyError(subject, "cloud east said 409: Instance u1 is locked")
        super().delete(service, path, subject)


def cloud_of(link: LockedCloud) -> Cloud:
    config = OpenStackConfig(
        "c1",
        {"east": CloudPlace("east")},
        Shape(("tiny",), "nodes"),
        Guest("", ""),
        patience=Patience(poll_s=0, act_s=5),
    )
    return Cloud(config, link, {})


def marked(**more: Any) -> Server:
    """One that its cloud's operator wants gone."""
    found = server(**more)
    found["metadata"][RECLAIM] = "host is repaired"
    return found


def room(cloud: Cloud) -> Resources:
    return pool_room(QUOTA, cloud.board.known(), 0, cloud.given_back(LATER_S))


def test_a_deletion_that_is_asked_for_again_and_again_takes_no_more_room() -> None:
    """Otherwise the whole pool would have to leave for one server that an admin has locked."""
    others = [server(id=f"u{n}", name=f"vn{n}") for n in (2, 3)]
    for n, other in enumerate(others, 2):
        other["metadata"]["backfill_node"] = f"vn{n}"
    link = LockedCloud(marked(), *others)
    cloud = cloud_of(link)
    cloud.board.fresh()
    before = room(cloud)
    for _ in range(20):
        with pytest.raises(BusyError, match="locked"):
            delete(cloud, "east", "vn1")
    assert room(cloud) == before
    link.locked = False
    delete(cloud, "east", "vn1")
    assert cloud.given_back(LATER_S) == Resources(1, 256)
    assert room(cloud) == before + Resources(0, 256)  # what its flavour took beyond that is nobody's now


def test_what_was_given_back_is_left_alone_for_a_while_only() -> None:
    link = LockedCloud(marked())
    link.locked = False
    cloud = cloud_of(link)
    delete(cloud, "east", "vn1")
    assert cloud.given_back(LATER_S) == Resources(1, 256)
    assert cloud.given_back(1e12) == NOTHING
