"""When a service of a lab counts as ready."""

from __future__ import annotations

import socket
from pathlib import Path

from backfill.lab.waiting import accepts


def test_of_several_places_all_have_to_answer(tmp_path: Path) -> None:
    """A port that is open is not enough while a file is missing or empty."""
    key = tmp_path / "key"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = f"tcp:127.0.0.1:{server.getsockname()[1]}"
        both = f"{port} file:{key}"
        assert accepts(port)
        assert not accepts(both)
        key.touch()
        assert not accepts(both)
        key.write_text("secret")
        assert accepts(both)
    assert not accepts(both)


def test_no_place_is_always_ready() -> None:
    assert accepts("")
