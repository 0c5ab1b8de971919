"""Reads, plays and judges scenarios: a small story on a cluster, with what must be true at its end."""
