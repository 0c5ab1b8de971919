"""Devices of instances: who holds them, their documents, and plugging."""
