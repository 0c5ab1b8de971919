"""What is asked of a cloud, and how often, on a link that answers out of memory."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any

import pytest

from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.link import Answer, ApiLink
from backfill.drivers.openstack.api.naming import id_of, own_groups
from backfill.drivers.openstack.api.shortage import is_no_room
from backfill.drivers.openstack.capacity import Gauge
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import BadOutputError, NotFoundError, RefusedError

LATE_S = 60.0
SHAPE = Shape(("tiny",), "nodes")


class MemoryLink(ApiLink):
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


class OwnLink(MemoryLink):
    """Signed in to project p1."""

    def project_id(self, subject: str) -> str:
        return "p1"


def test_a_cloud_that_has_no_security_groups_gets_ports_without() -> None:
    """Neutron leaves the extension out where no driver of its has it."""
    link = OwnLink()
    link.pages["/networks/n1"] = {"network": {"id": "n1"}}
    names = ("backfill-c1", "backfill-c1-nodes")
    assert own_groups(link, names, "n1", "vn1") == []
    named = [
        {"id": f"g{n}", "name": name} for n, name in enumerate(("default", *names, f"{names[0]}-controller"))
    ]
    link.pages["/security-groups"] = {"security_groups": named}
    assert own_groups(link, names, "n1", "vn1") == ["g1", "g2"]


def test_an_older_picture_is_dropped_unless_the_server_was_being_built() -> None:
    """Lists may lag; but the end of a creation may bear an earlier time than its beginning."""
    link = MemoryLink()
    board = Board(link, "c1", Patience())
    told = [("BUILD", 24), ("ERROR", 23), ("ACTIVE", 22), ("ACTIVE", 25)]
    seen = []
    for status, second in told:
        link.pages["/servers/detail"] = {
            "servers": [
                {
                    "id": "u1",
                    "name": "vn1",
                    "metadata": {"backfill_cluster": "c1"},
                    "status": status,
                    "updated": f"2026-11-22T02:59:{second}Z",
                }
            ]
        }
        seen.append(board.fresh()["u1"]["status"])
    assert seen == ["BUILD", "ERROR", "ERROR", "ACTIVE"]


def test_a_server_in_a_part_that_is_down_stays_as_it_was() -> None:
    """Nova leaves it out of lists then, and what it says of it by itself has not even a name."""
    link = MemoryLink()
    board = Board(link, "c1", Patience(full_s=0))
    server = {"id": "u1", "name": "vn1", "metadata": {"backfill_cluster": "c1"}}
    for status in ("ACTIVE", "BUILD"):
        whole = {**server, "status": status}
        link.pages["/servers/detail"] = {"servers": [whole]}
        assert board.fresh() == {"u1": whole}
        link.pages["/servers/u1"] = {"server": {"id": "u1", "status": "UNKNOWN"}}
        assert board.refresh("u1", "vn1") == whole
        for listed in ([], [{"id": "u1", "status": "UNKNOWN"}]):
            link.pages["/servers/detail"] = {"servers": listed}
            assert board.fresh() == {"u1": whole}


def test_used_hours_are_read_to_the_last_page() -> None:
    """Nova tells of so many servers in one answer; a month may have more."""
    link = PagedLink()
    config = OpenStackConfig("c1", {}, SHAPE, Guest("", ""), hours_cap=9.0)
    assert Gauge(Cloud(config, link, {})).quota().hours == 7.5
    usage = [query for path, query in link.asked if "usage" in path]
    assert [query.get("marker") for query in usage] == [None, "u1", "u2"]


class PagedLink(MemoryLink):
    """Three pages of used hours, the last one empty."""

    def project_id(self, subject: str) -> str:
        return "p1"

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        self.asked.append((path, query))
        if path == "/limits":
            keys = (
                "maxTotalCores",
                "maxTotalRAMSize",
                "maxTotalInstances",
                "totalCoresUsed",
                "totalRAMUsed",
                "totalInstancesUsed",
            )
            return Answer({"limits": {"absolute": dict.fromkeys(keys, 0)}}, "")
        pages = {None: ("u1", 5.0), "u1": ("u2", 2.5)}
        found = pages.get(query.get("marker"))
        if found is None:
            return Answer({"tenant_usage": {}}, "")
        usages = [{"instance_id": found[0], "hours": found[1]}]
        more = [{"rel": "next"}]
        return Answer({"tenant_usage": {"server_usages": usages}, "tenant_usage_links": more}, "")


def test_of_several_of_one_name_the_right_one_or_none() -> None:
    """The project's own network before others', the newest image that is whole; else a sentence."""
    link = PagedLink()
    memory = MemoryLink()
    link.get = memory.get  # type: ignore[method-assign]
    nets = [{"id": f"n{n}", "name": "nodes", "project_id": f"p{n}"} for n in (0, 1, 2)]
    memory.pages["/networks"] = {"networks": nets}
    assert id_of(link, "network", "network", "nodes", "vn1") == "n1"
    memory.pages["/networks"] = {"networks": [nets[0], nets[2]]}
    with pytest.raises(RefusedError, match=r"has 2 networks of this name; write the id.*n0, n2"):
        id_of(link, "network", "network", "nodes", "vn1")
    memory.pages["/images"] = {
        "images": [
            {"id": "i3", "name": "node", "status": "saving", "created_at": "2026-03"},
            {"id": "i1", "name": "node", "status": "active", "created_at": "2026-01"},
            {"id": "i2", "name": "node", "status": "active", "created_at": "2026-02"},
        ]
    }
    assert id_of(link, "image", "image", "node", "vn1") == "i2"


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


def test_servers_of_a_host_that_has_another_name_now_are_told_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nobody looks after them: no host of the policy file says that it has them."""
    link = MemoryLink()
    link.pages["/servers/detail"] = {
        "servers": [
            {
                "id": f"u{i}",
                "name": f"vn{i}",
                "status": "ACTIVE",
                "metadata": {"backfill_cluster": "c1", "backfill_host": host},
            }
            for i, host in enumerate(("east", "pool", "pool"))
        ]
    }
    config = OpenStackConfig("c1", {"east": CloudPlace("east")}, SHAPE, Guest("", ""))
    provider = OpenStackProvider(config, lambda *given: link)
    for _ in range(2):
        provider.observe("east")
    (told,) = caplog.messages
    assert told.startswith("cloud east: vn1 (pool), vn2 (pool) carry the name of a host")


@pytest.mark.parametrize("body", [{}, {"versions": [{"id": "v2.0"}]}, {"networks": None}])
def test_an_answer_without_the_list_says_nothing_of_what_is_there(body: dict[str, Any]) -> None:
    """A gateway may answer in a service's place: neither a network nor a server is gone by that."""
    link = MemoryLink()
    link.pages["/networks"] = body
    with pytest.raises(BadOutputError, match="no list of them"):
        id_of(link, "network", "network", "lan", "vn1")
    link.pages["/networks"] = {"networks": []}
    with pytest.raises(RefusedError, match="has no network of this name"):
        id_of(link, "network", "network", "lan", "vn1")
    link.pages["/servers/detail"] = body
    with pytest.raises(BadOutputError, match="no list of them"):
        Board(link, "c1", Patience()).fresh()


def test_threads_that_come_first_sign_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections would each look for the services anew, and one would never be closed."""
    link, made = ApiLink("east", "", Patience()), list[object]()
    both, inside = threading.Barrier(2), threading.Barrier(2)

    def connect() -> object:
        with suppress(threading.BrokenBarrierError):
            inside.wait(0.5)  # for the other one, who is not to come
        made.append(object())
        return made[-1]

    monkeypatch.setattr(link, "_connect", connect)

    def ask() -> None:
        both.wait(LATE_S)
        link._connected()

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LATE_S)
    assert len(made) == 1
