"""Decides which waiting job starts when: FCFS, EASY and conservative backfill."""
