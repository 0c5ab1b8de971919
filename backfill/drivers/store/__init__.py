"""The journal, in SQLite."""
