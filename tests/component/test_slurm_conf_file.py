"""The managed file of slurm.conf: what is written is read back, and foreign edits show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backfill.drivers.slurm.conf.files import replace_file
from backfill.drivers.slurm.conf.managed import EMPTY, ForeignEditError, LineState, difference, parse, render
from tests.component.conf_cluster import line

STEPS = ("backup", "note", "write", "reload", "look", "end")


def test_what_is_written_is_read_back() -> None:
    """Nodes, their states, and the settings of all sections."""
    managed = EMPTY.with_nodes(line("vn1"), line("vn2", LineState.UNKNOWN))
    managed = managed.with_section("hooks", (("PrologSlurmctld", "/a/b"), ("Epilog", "/c=d")))
    assert parse(render(managed)) == managed
    assert managed.with_section("hooks", ()).pairs() == []


@pytest.mark.parametrize("edit", ["NodeName=x CPUs=1\n", "# by hand\n"])
def test_a_foreign_edit_is_noticed(edit: str) -> None:
    """An added line, a changed one, a lost end, another file: all are."""
    text = render(EMPTY.with_nodes(line("vn1")))
    for other in (text + edit, text.replace("CPUs=2", "CPUs=3"), text[:-5], edit):
        with pytest.raises(ForeignEditError):
            parse(other)


def test_the_diff_shows_lines_and_no_checksums() -> None:
    """What a person wants to see before saying yes."""
    old, new = EMPTY.with_nodes(line("vn1")), EMPTY.with_nodes(line("vn1"), line("vn2"))
    shown = difference(render(old), render(new), "backfill.conf")
    assert "+NodeName=vn2 NodeAddr=10.1.0.2 CPUs=2 RealMemory=500 Feature=backfill" in shown
    assert "checksum" not in shown
    assert difference(render(old), render(old), "x") == ""


def test_a_file_is_on_disk_with_its_owner_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut the name means the old text or the new one, and Slurm's user can read it."""
    theirs = Path("/etc/passwd").stat()
    done: list[tuple[str, object]] = []
    rename = os.replace

    def name(old: Path, new: Path) -> None:
        done.append(("name", new))
        rename(old, new)

    def sync(handle: int) -> None:
        done.append(("disk", Path(os.readlink(f"/proc/self/fd/{handle}"))))

    monkeypatch.setattr(os, "fchown", lambda _handle, *owner: done.append(("owner", owner)))
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", name)
    replace_file(tmp_path / "x", "new", like=Path("/etc/passwd"))
    assert (tmp_path / "x").read_text() == "new"
    assert done == [
        ("owner", (theirs.st_uid, theirs.st_gid)),
        ("disk", tmp_path / ".x.backfill-new"),
        ("name", tmp_path / "x"),
        ("disk", tmp_path),
    ]
