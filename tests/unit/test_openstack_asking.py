"""What is asked of a cloud, and how often, on a link that answers out of memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.openstack.board import Board
from backfill.drivers.openstack.errors import is_no_room
from backfill.drivers.openstack.link import Answer, Link
from backfill.drivers.openstack.naming import id_of
from backfill.drivers.openstack.settings import Patience
from backfill.ports import NotFoundError, RefusedError

LATE_S = 60.0


class MemoryLink(Link):
    """Answers GET with what stands in `pages`, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__("east", "", Patience())
        self.pages: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        self.asked.append((path, query))
        if path not in self.pages:
            raise NotFoundError(subject, "no such thing")
        return Answer(self.pages[path], "")


def test_watchers_take_the_picture_that_somebody_else_has_read() -> None:
    """Two wait, a third reads once: both see it, and neither asks again."""
    link = MemoryLink()
    server = {"id": "u1", "name": "vn1", "metadata": {"backfill_cluster": "c1"}}
    link.pages["/servers/detail"] = {"servers": [{**server, "status": "BUILD"}]}
    board = Board(link, "c1", Patience(poll_s=LATE_S))
    seen: list[bool] = []

    def watch() -> None:
        seen.append(board.watch("u1", lambda s: s is not None and s["status"] == "ACTIVE", 1)[0])

    watchers = [threading.Thread(target=watch) for _ in range(2)]
    for watcher in watchers:
        watcher.start()
    link.pages["/servers/detail"] = {"servers": [{**server, "status": "ACTIVE"}]}
    board.fresh()
    for watcher in watchers:
        watcher.join(LATE_S / 2)
    assert seen == [True, True]
    assert len(link.asked) <= 3


def test_an_older_picture_is_dropped_unless_the_server_was_being_built() -> None:
    """Lists may lag; but the end of a creation may bear an earlier time than its beginning."""
    link = MemoryLink()
    board = Board(link, "c1", Patience())
    told = [("BUILD", 24), ("ERROR", 23), ("ACTIVE", 22), ("ACTIVE", 25)]
    seen = []
    for status, second in told:
        link.pages["/servers/detail"] = {"servers": [{
            "id": "u1", "name": "vn1", "metadata": {"backfill_cluster": "c1"},
            "status": status, "updated": f"2026-11-22T02:59:{second}Z",
        }]}  # fmt: skip
        seen.append(board.fresh()["u1"]["status"])
    assert seen == ["BUILD", "ERROR", "ERROR", "ACTIVE"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("clouds: {west: {}}", "cloud east cannot be used: Cloud east was not found"),
        ("clouds: [", "it is not YAML"),
        (None, "it cannot be read .No such file"),
    ],
)
def test_the_file_that_the_policy_names_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    """Whatever the environment names; what is wrong with it is one sentence."""
    other, file = tmp_path / "other.yaml", tmp_path / "clouds.yaml"
    other.write_text("clouds: {east: {auth: {auth_url: 'http://127.0.0.1:9/v3'}}}")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(other))
    if content is not None:
        file.write_text(content)
    with pytest.raises(RefusedError, match=f"{words}.*; see"):
        Link("east", str(file), Patience()).get("compute", "/servers", "vn1")


def test_names_are_asked_for_and_ids_looked_at() -> None:
    """Glance lists 25 images at a time, so a name is asked for; an id needs no list."""
    link = MemoryLink()
    wanted = "6a1c7b2e-0000-4000-8000-000000000001"
    link.pages["/images"] = {"images": [{"id": "i1", "name": "node"}]}
    assert id_of(link, "image", "image", "node", "vn1") == "i1"
    assert link.asked == [("/images", {"name": "node"})]
    link.pages[f"/images/{wanted}"] = {"id": wanted}
    assert id_of(link, "image", "image", wanted, "vn1") == wanted
    link.pages["/flavors"] = {"flavors": [{"id": "1", "name": "tiny"}]}
    assert id_of(link, "compute", "flavor", "tiny", "vn1") == "1"
    with pytest.raises(RefusedError, match=r"cloud east has no flavor.*openstack\.flavours"):
        id_of(link, "compute", "flavor", "huge", "vn1")
    with pytest.raises(RefusedError, match="no image of this name; upload it"):
        id_of(link, "image", "image", wanted.replace("1", "2"), "vn1")


def test_a_zone_whose_hosts_are_away_has_no_room() -> None:
    """Nova refuses the request then; for us it is a reason to try the next zone."""
    assert is_no_room("cloud east said 400: The requested availability zone is not available")
    assert not is_no_room("cloud east said 400: Invalid key_name provided.")
