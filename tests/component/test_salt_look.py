"""What a guest's look says: Salt's module in it, with a program and a list of this machine."""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.saltimage import LOOK

Look = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    """As Salt would load it; the program in the guest says whether `fine` is there."""
    program = tmp_path / "stated"
    program.write_text(f"#!/bin/sh\n[ -e {tmp_path}/fine ] && exit\necho hosts differs\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "fine").touch()
    (tmp_path / "list").write_bytes(b"end\n")
    found = runpy.run_path(str(LOOK))["look"]
    found.__globals__.update(__opts__={"id": "vn1.g2"}, _LIST=str(tmp_path / "list"), _PROGRAM=str(program))
    made: Look = found
    return made


def asked(key: bytes = b"key", at: Path | None = None, listed: bytes = b"end\n") -> dict[str, Any]:
    seals = {str(at): ["text", hashlib.sha256(b"text" + key).hexdigest()]} if at else {}
    return {"vn1.g2": [hashlib.sha256(listed).hexdigest(), seals], "vn2.g1": ["other", {}]}


def test_all_that_is_listed_and_every_secret_holds(look: Look, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"key")
    assert look(asked(at=tmp_path / "key")) == {"same": True, "told": ""}


def test_the_first_thing_that_is_not_so_is_told(look: Look, tmp_path: Path) -> None:
    """A list of other states, a secret that differs or is not there, what the program finds."""
    (tmp_path / "key").write_bytes(b"another")
    assert "something else now" in look(asked(listed=b"file\nend\n"))["told"]
    assert look(asked(at=tmp_path / "key")) == {"same": False, "told": f"{tmp_path}/key differs"}
    assert not look(asked(at=tmp_path / "no key"))["same"]
    (tmp_path / "fine").unlink()
    assert look(asked()) == {"same": False, "told": "hosts differs"}
    (tmp_path / "stated").unlink()
    assert "cannot be seen" in look(asked())["told"]
    (tmp_path / "list").unlink()
    assert not look(asked())["same"]
