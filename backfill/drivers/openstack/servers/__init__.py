"""Servers of instances: made, removed, stopped, moved, with their ports and volumes."""
