"""Proves the whole way from Slurm to a guest, as the daemon's user, and says what is missing on it."""
