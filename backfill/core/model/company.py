"""Company: where the machines of one job are to one another."""

from __future__ import annotations

from enum import StrEnum


class Company(StrEnum):
    """Where a job's own machines are created."""

    ANY = ""
    TOGETHER = "together"  # on one host
    SPREAD = "spread"  # each on another one
