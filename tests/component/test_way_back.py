"""The way back to an older backfill, as docs/upgrading.md has it."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

from backfill.drivers.store.formats import VERSION
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Record

PAGE = Path(__file__).parents[2] / "docs/upgrading.md"


def test_a_killed_newer_daemon_leaves_nothing_in_the_copy(tmp_path: Path) -> None:
    """Its last records are in a file beside the journal, which SQLite would read into any journal there."""
    state, aside = tmp_path / "backfill", tmp_path / "aside"
    state.mkdir()
    journal = SqliteJournal(state / "journal.db")
    journal.append([Record(1.0, "change", "vn1", {"t": "Tick", "now_s": 1})])
    journal.close()
    shutil.copytree(state, tmp_path / "backfill.before")
    newer = sqlite3.connect(state / "journal.db")
    newer.execute(f"PRAGMA user_version = {VERSION + 1}")
    shutil.copytree(state, aside)  # as it is when that process dies
    newer.close()
    shutil.rmtree(state)
    aside.rename(state)
    assert (state / "journal.db-wal").stat().st_size

    way = PAGE.read_text().partition("**To go back**")[2].partition("\n## ")[0]
    commands = "".join(re.findall(r"```sh\n(.*?)```", way, re.DOTALL))
    script = commands.replace("/var/lib/", f"{tmp_path}/")
    subprocess.run(["sh", "-euc", script], check=True)
    journal = SqliteJournal(state / "journal.db")
    assert [record.subject for record in journal.read()] == ["vn1"]
    journal.close()
