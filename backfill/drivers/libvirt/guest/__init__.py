"""Requests to a running guest, and the seed that it gets at birth."""
