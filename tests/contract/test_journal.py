"""The journal contract, held by both journals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.drivers.store.memory import MemoryJournal
from backfill.drivers.store.prompt import PromptJournal
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Journal
from tests.contract.journal import JournalContract


class TestMemoryJournal(JournalContract):
    @pytest.fixture
    def journal(self) -> Iterator[Journal]:
        journal = MemoryJournal()
        yield journal
        journal.close()


class TestSqliteJournal(JournalContract):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        journal = SqliteJournal(tmp_path / "journal.db")
        yield journal
        journal.close()


class TestPromptJournal(JournalContract):
    @pytest.fixture
    def journal(self, tmp_path: Path) -> Iterator[Journal]:
        journal = PromptJournal(SqliteJournal(tmp_path / "journal.db"), "the journal", within_s=60.0)
        yield journal
        journal.close()
