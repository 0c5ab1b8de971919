"""The queue to the disk: how many instances may have their memory written at the same time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskQueue:
    """Few at a time end sooner: eight that share one disk all end last."""

    # At once from one host.
    per_host: int = 2
    # At once from all hosts, which share the directory.
    in_all: int = 4

    def refusal(self, on_host: int, in_all: int) -> str:
        """Say why one more may not begin beside those under way, or return an empty text."""
        if on_host >= self.per_host:
            return f"disk_queue.per_host = {self.per_host} is reached"
        if in_all >= self.in_all:
            return f"disk_queue.in_all = {self.in_all} is reached"
        return ""
