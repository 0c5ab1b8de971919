"""How an HTCondor pool is reached, and what counts there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CondorConfig:
    """`python` has HTCondor's bindings; `collector` is host or host:port; `tokens` a directory.

    `constraint`: which waiting payloads count, as a ClassAd expression, empty for all; no more than
    `most_idle` of them, and `most_runs` runs of each access point, are asked for at once.
    """

    python: str
    collector: str
    tokens: str
    constraint: str = ""
    within_s: float = 20.0
    most_idle: int = 10_000
    most_runs: int = 1000
