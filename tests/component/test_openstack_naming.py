"""What a name stands for where an administrator sees the images and networks of every project."""

from __future__ import annotations

from typing import Any

import pytest

from backfill.drivers.openstack.api.naming import id_of
from backfill.ports.errors import RefusedError
from tests.component.test_openstack_asking import OwnLink


def image(identity: str, owner: str, visibility: str, month: int) -> dict[str, Any]:
    return {
        "id": identity,
        "name": "node",
        "owner": owner,
        "visibility": visibility,
        "status": "active",
        "created_at": f"2026-{month:02}",
    }


OURS, PUBLIC = image("ours", "p1", "shared", 1), image("public", "p9", "public", 2)
SHARED = image("shared", "p8", "shared", 3)
# Any user of the cloud may upload these: `shared` is what Glance makes of an image by itself.
THEIRS = [image(f"bad-{v}", "p7", v, 9) for v in ("shared", "private", "community")]


def link_with(*images: dict[str, Any], accepted: str = "") -> OwnLink:
    link = OwnLink()
    link.pages["/images"] = {"images": list(images)}
    for one in images:
        status = "accepted" if one["id"] == accepted else "pending"
        if one["owner"] == "p8":
            link.pages[f"/images/{one['id']}/members/p1"] = {"member_id": "p1", "status": status}
    return link


@pytest.mark.parametrize(
    ("images", "wanted"),
    [
        ([OURS, *THEIRS], "ours"),
        ([OURS, PUBLIC], "ours"),
        ([PUBLIC, *THEIRS], "public"),
        ([SHARED, *THEIRS], "shared"),
        ([OURS, image("new", "p1", "private", 4), *THEIRS], "new"),
    ],
)
def test_no_image_that_a_stranger_has_uploaded_is_booted(images: list[dict[str, Any]], wanted: str) -> None:
    """Its guest would be handed the cluster's munge key."""
    assert id_of(link_with(*images, accepted="shared"), "image", "image", "node", "vn1") == wanted


@pytest.mark.parametrize("images", [THEIRS, [SHARED, *THEIRS]])
def test_strangers_images_alone_are_none(images: list[dict[str, Any]]) -> None:
    """Ours is just being replaced; theirs is not taken in its place. They may still be named by id."""
    link = link_with(*images)
    words = r"node: cloud east has no image of this name that is ours, public or shared with us.*bad-shared"
    with pytest.raises(RefusedError, match=words):
        id_of(link, "image", "image", "node", "vn1")
    assert id_of(link, "image", "image", "bad-shared", "vn1") == "bad-shared"


def test_a_strangers_network_is_none_of_ours() -> None:
    """Guests would be in it; one that is shared with us, or leads outside, is for us."""
    link = OwnLink()
    theirs = {"id": "n7", "name": "nodes", "project_id": "p7", "shared": False}
    link.pages["/networks"] = {"networks": [theirs]}
    with pytest.raises(RefusedError, match="no network of this name that is ours, public or shared"):
        id_of(link, "network", "network", "nodes", "vn1")
    for more in ({"shared": True}, {"router:external": True}, {"project_id": "p1"}):
        link.pages["/networks"] = {"networks": [theirs, {**theirs, "id": "n1", **more}]}
        assert id_of(link, "network", "network", "nodes", "vn1") == "n1"
