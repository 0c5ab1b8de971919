"""The managed file of slurm.conf: what is written is read back, and foreign edits show."""

from __future__ import annotations

import pytest

from backfill.drivers.slurm.conf.managed import EMPTY, ForeignEditError, LineState, difference, parse, render
from tests.unit.conf_cluster import line

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
