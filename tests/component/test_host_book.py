"""What hosts were is remembered, over a restart too, until nothing of ours is on them."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import libvirt
import pytest

from backfill.drivers.libvirt.connection.link import machine_name
from backfill.drivers.store.host_book import WrittenHostBook
from backfill.ports.hostbook import HostBook
from tests.component.living_daemon import living, parked

_KINDS: dict[str, Callable[[Path], HostBook]] = {
    "in memory": lambda path: HostBook(),
    "written": lambda path: WrittenHostBook(path / "state/hosts.json"),
}


@pytest.fixture(params=_KINDS)
def book(request: pytest.FixtureRequest, tmp_path: Path) -> HostBook:
    return _KINDS[request.param](tmp_path)


def test_a_host_with_instances_stays_what_it_is(book: HostBook) -> None:
    """One without may become another machine, or get another name."""
    assert meet(book, "bm1", "a") == ""
    assert meet(book, "bm1", "b") == ""
    book.hold({"bm1"})
    assert meet(book, "bm1", "c") == "until now it was b"
    assert meet(book, "bm1", "b") == ""
    book.hold(())
    assert meet(book, "bm1", "c") == ""


def test_a_name_may_lack_its_domain(book: HostBook) -> None:
    """DNS tells the domain, or does not; another domain is another machine."""
    meet(book, "bm1", "node1.rack1.site")
    book.hold({"bm1"})
    assert meet(book, "bm1", "node1") == ""
    assert meet(book, "bm1", "node1.rack1.site") == ""
    assert meet(book, "bm1", "node1.rack2.site") == "until now it was node1.rack1.site"
    assert meet(book, "bm1", "node2") == "until now it was node1.rack1.site"


def test_no_host_is_taken_for_one_that_is_missing(book: HostBook) -> None:
    """Its instances would seem to be there."""
    meet(book, "bm1", "a")
    book.hold({"bm1"})
    assert meet(book, "bm1", "b") == "until now it was a"
    assert meet(book, "bm2", "a") == "that is what host bm1 was"
    assert meet(book, "bm2", "b") == ""
    assert meet(book, "bm1", "a") == ""


def test_machines_may_have_equal_names(tmp_path: Path) -> None:
    """All of them are where they were; and one cloud's project may be several hosts."""
    path = tmp_path / "hosts.json"
    path.write_text('{"bm1": "debian", "bm2": "debian"}')
    book = WrittenHostBook(path)
    assert meet(book, "bm3", "debian") == "that is what host bm1 was"
    assert [meet(book, host, "debian") for host in ("bm1", "bm2", "bm3")] == ["", "", ""]
    assert book.contradiction("east", "project a", alone=False) == ""


def test_it_outlives_a_restart(tmp_path: Path) -> None:
    """Of hosts with instances, which the journal's word then settles; who only looks writes nothing."""
    path = tmp_path / "hosts.json"
    before = WrittenHostBook(path)
    for host, identity in (("bm1", "a"), ("bm2", "b"), ("bm3", "c")):
        meet(before, host, identity)
    before.hold({"bm1", "bm2"})
    again = WrittenHostBook(path)
    assert meet(again, "bm1", "x") == "until now it was a"
    assert meet(again, "bm2", "y") == "until now it was b"
    assert meet(again, "bm3", "z") == ""
    again.hold({"bm1"})
    assert meet(again, "bm2", "y") == ""
    looking = WrittenHostBook(path, write=False)
    looking.hold(())
    assert meet(looking, "bm1", "x") == ""
    assert json.loads(path.read_text()) == {"bm1": "a"}
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.json"]


def test_the_daemon_says_which_hosts_have_instances(tmp_path: Path) -> None:
    """Those have to stay what they are."""
    with living(tmp_path) as daemon:
        parked(daemon)
        book = daemon.daemon.outside.book
        (host,) = {node.host for node in daemon.daemon.world.managed.values()}
        book.met(host, "a")
        daemon.daemon._look_at_hosts()
        daemon.until(lambda: book.contradiction(host, "b", alone=True) == "until now it was a")


def test_a_machine_that_does_not_tell_its_name_is_not_waited_for() -> None:
    """Its resolver may hang: nobody's work is stopped by that."""
    released = threading.Event()

    class Mute:
        def getHostname(self) -> str:  # noqa: N802 - libvirt's own name
            released.wait()
            return "late"

    class Failing:
        def getHostname(self) -> str:  # noqa: N802 - as above
            raise libvirt.libvirtError("no name")

    class Talking:
        def getHostname(self) -> str:  # noqa: N802 - as above
            return "BM1.site"

    assert machine_name(Mute(), within_s=0.01) == ""
    released.set()
    assert machine_name(Failing()) == ""
    assert machine_name(Talking()) == "bm1.site"


def meet(book: HostBook, host: str, identity: str) -> str:
    """What speaks against it; what is known of it afterwards, where nothing does."""
    why = book.contradiction(host, identity, alone=True)
    if not why:
        book.met(host, identity)
    return why


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bm1": 1}', "\udc80"])
def test_a_damaged_file_knows_nothing(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and written anew."""
    path = tmp_path / "hosts.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        book = WrittenHostBook(path)
    assert str(path) in caplog.text
    book.hold({"bm1"})
    assert meet(book, "bm1", "a") == ""
    assert json.loads(path.read_text()) == {"bm1": "a"}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The book works on without it."""
    (tmp_path / "state").write_text("no directory")
    book = WrittenHostBook(tmp_path / "state/hosts.json")
    meet(book, "bm1", "a")
    with caplog.at_level(logging.WARNING):
        book.hold({"bm1"})
    assert "not kept over a restart" in caplog.text
    assert meet(book, "bm1", "b") == "until now it was a"
