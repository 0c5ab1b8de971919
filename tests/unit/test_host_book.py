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
    """Until the host is forgotten."""
    assert book.known("bm1", "a") == "a"
    assert book.known("bm1", "b") == "a"
    assert book.known("bm2", "b") == "b"
    book.keep({"bm2"})
    assert book.known("bm1", "b") == "b"
    assert book.known("bm2", "a") == "b"


def test_it_outlives_a_restart(tmp_path: Path) -> None:
    """What was forgotten stays so; who only looks writes nothing."""
    path = tmp_path / "hosts.json"
    before = WrittenHostBook(path)
    before.known("bm1", "a")
    before.known("bm2", "b")
    before.keep({"bm1"})
    looking = WrittenHostBook(path, write=False)
    assert looking.known("bm1", "x") == "a"
    assert looking.known("bm3", "c") == "c"
    assert json.loads(path.read_text()) == {"bm1": "a"}
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.json"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"bm1": 1}', "\udc80"])
def test_a_damaged_file_knows_nothing(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is told, and written anew."""
    path = tmp_path / "hosts.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with caplog.at_level(logging.WARNING):
        book = WrittenHostBook(path)
    assert str(path) in caplog.text
    assert book.known("bm1", "a") == "a"
    assert json.loads(path.read_text()) == {"bm1": "a"}


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The book works on without it."""
    (tmp_path / "state").write_text("no directory")
    book = WrittenHostBook(tmp_path / "state/hosts.json")
    with caplog.at_level(logging.WARNING):
        assert book.known("bm1", "a") == "a"
    assert "not kept over a restart" in caplog.text
    assert book.known("bm1", "b") == "a"
