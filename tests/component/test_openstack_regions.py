"""A credential that leads to another region of its project: its servers there are not those that we know."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.settings import Patience
from backfill.ports.errors import RefusedError
from backfill.ports.hostbook import HostBook

REGIONS = ["north", "south"]


def token(address: str, regions: list[str]) -> dict[str, Any]:
    """As Keystone writes it: Nova is in these regions, the first one where nobody says which."""
    endpoints = [
        {"id": r, "interface": "public", "region": r, "region_id": r, "url": f"{address}/{r}/v2.1"}
        for r in regions
    ]
    return {
        "token": {
            "methods": ["password"],
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "user": {"id": "u", "name": "u", "domain": {"id": "default", "name": "Default"}},
            "project": {"id": "p1", "name": "p", "domain": {"id": "default", "name": "Default"}},
            "roles": [{"id": "m", "name": "member"}],
            "catalog": [{"type": "compute", "name": "nova", "id": "n", "endpoints": endpoints}],
        }
    }


class Keystone(BaseHTTPRequestHandler):
    """Lets everybody in."""

    regions = REGIONS

    def do_GET(self) -> None:
        version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": self.address}]}
        self.reply(200, {"version": version})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.reply(201, token(self.address, type(self).regions))

    @property
    def address(self) -> str:
        return f"http://{self.headers['Host']}/v3"

    def reply(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Subject-Token", "token")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_given: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def keystone() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Keystone)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v3"
    server.shutdown()
    server.server_close()
    thread.join()


def link_to(address: str, file: Path, book: HostBook, region: str = "") -> ApiLink:
    entry: dict[str, Any] = {
        "auth": {
            "auth_url": address,
            "username": "u",
            "password": "p",
            "project_name": "p",
            "user_domain_id": "default",
            "project_domain_id": "default",
        }
    }
    if region:
        entry["region_name"] = region
    file.write_text(json.dumps({"clouds": {"east": entry}}))
    return ApiLink("east", str(file), Patience(tries=1), ["pool"], book)


def test_another_region_is_refused_while_servers_are_in_the_known_one(keystone: str, tmp_path: Path) -> None:
    """All of them would seem gone, and their jobs begin anew beside them."""
    file, book = tmp_path / "clouds.yaml", HostBook()
    assert link_to(keystone, file, book, "north").project_id("vn1") == "p1"
    book.hold({"pool"})
    words = "for project p1 in region south, but until now it was project p1 in region north"
    with pytest.raises(RefusedError, match=words):
        link_to(keystone, file, book, "south").project_id("vn1")
    assert link_to(keystone, file, book).project_id("vn1") == "p1"
    book.hold(())
    assert link_to(keystone, file, book, "south").project_id("vn1") == "p1"


def test_a_region_that_comes_first_in_the_catalogue_now_is_another(
    keystone: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry names none, and the cloud's operator has added one."""
    file, book = tmp_path / "clouds.yaml", HostBook()
    assert link_to(keystone, file, book).project_id("vn1") == "p1"
    book.hold({"pool"})
    monkeypatch.setattr(Keystone, "regions", REGIONS[::-1])
    with pytest.raises(RefusedError, match=r"in region south, but until now it was .* region north"):
        link_to(keystone, file, book).project_id("vn1")


def test_a_project_that_was_noted_without_its_region_is_known(keystone: str, tmp_path: Path) -> None:
    """By an older version, or where the catalogue led nowhere."""
    file, book = tmp_path / "clouds.yaml", HostBook()
    book.met("pool", "project p1")
    book.hold({"pool"})
    assert link_to(keystone, file, book, "north").project_id("vn1") == "p1"
    with pytest.raises(RefusedError, match="in region south"):
        link_to(keystone, file, book, "south").project_id("vn1")
