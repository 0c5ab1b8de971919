"""Replays traces and journals in simulated time, with the daemon's own plan or without instances."""
