"""What hosts were is remembered, over a restart too, until nothing of ours is on them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.drivers.store.host_book import WrittenHostBook
from backfill.ports.hostbook import HostBook

_KINDS: dict[str, Callable[[Path], HostBook]] = {
    "in memory": lambda path: HostBook(),
    "written": lambda path: WrittenHostBook(path / "state/hosts.json"),
}


@pytest.fixture(params=_KINDS)
def book(request: pytest.FixtureRequest, tmp_path: Path) -> HostBook:
    return _KINDS[request.param](tmp_path)


def test_the_first_word_counts(book: HostBook) -> None:
    """Also where the start of a daemon is over, which finds nothing of ours there yet."""
    assert book.contradiction("bm1", "a", alone=True) == ""
    assert book.contradiction("bm1", "b", alone=True) == "until now it was a"
    book.keep(())
    assert book.contradiction("bm1", "b", alone=True) == "until now it was a"
    assert book.contradiction("bm1", "a", alone=True) == ""


def test_no_host_is_taken_for_another(book: HostBook) -> None:
    """The room of a machine would count twice; several hosts may be one cloud's, though."""
    book.contradiction("bm1", "a", alone=True)
    assert book.contradiction("bm2", "a", alone=True) == "that is what host bm1 is"
    assert book.contradiction("bm2", "b", alone=True) == ""
    assert book.contradiction("east", "project a", alone=False) == ""
    assert book.contradiction("west", "project a", alone=False) == ""


def test_a_host_without_instances_may_be_another_after_a_restart(tmp_path: Path) -> None:
    """What was forgotten stays so; who only looks writes nothing."""
    path = tmp_path / "hosts.json"
    before = WrittenHostBook(path)
    for host, identity in (("bm1", "a"), ("bm2", "b"), ("bm3", "c")):
        before.contradiction(host, identity, alone=True)
    again = WrittenHostBook(path)
    assert again.contradiction("bm1", "x", alone=True) == "until now it was a"
    assert again.contradiction("bm2", "y", alone=True) == "until now it was b"
    again.keep({"bm1"})
    assert again.contradiction("bm1", "x", alone=True) == "until now it was a"
    assert again.contradiction("bm2", "y", alone=True) == ""
    looking = WrittenHostBook(path, write=False)
    assert looking.contradiction("bm3", "d", alone=True) == ""
    assert looking.contradiction("bm2", "b", alone=True) == "until now it was y"
    assert json.loads(path.read_text()) == {"bm1": "a", "bm2": "y"}
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bm1": 1}', "\udc80"])
def test_a_damaged_file_knows_nothing(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and written anew."""
    path = tmp_path / "hosts.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        book = WrittenHostBook(path)
    assert str(path) in caplog.text
    assert book.contradiction("bm1", "a", alone=True) == ""
    assert json.loads(path.read_text()) == {"bm1": "a"}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The book works on without it."""
    (tmp_path / "state").write_text("no directory")
    book = WrittenHostBook(tmp_path / "state/hosts.json")
    with caplog.at_level(logging.WARNING):
        assert book.contradiction("bm1", "a", alone=True) == ""
    assert "not kept over a restart" in caplog.text
    assert book.contradiction("bm1", "b", alone=True) == "until now it was a"
