"""Instant clones and the parents that they go on from."""
