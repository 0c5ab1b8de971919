"""The queue to the disk: how much memory may be on its way there at the same time."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key
from backfill.core.model.refusals import Code, Reason, because


@dataclass(frozen=True, slots=True)
class DiskQueue:
    """Large suspends take turns, small ones go together. The limits count MB, not instances: eight
    guests with 90 MB in use each were on disk after 1.1 s on average when all began at once, and
    after 2.1 s two at a time, because most of a small suspend is not writing. If the disk is the
    bottleneck, turns end sooner on average.
    """

    host_mb: int = key(4096, "Memory in use of the instances that one host writes at once, MB.")
    all_mb: int = key(16384, "The same from all hosts, which share the directory.")

    def refusal(self, more_mb: int, here_mb: int, everywhere_mb: int) -> Reason | None:
        """Return why `more_mb` may not begin beside what is under way, if it may not.

        What is bigger than the limit goes alone.
        """
        if here_mb and here_mb + more_mb > self.host_mb:
            return because(Code.DISK_QUEUE, key="disk_queue.host_mb", most=self.host_mb)
        if everywhere_mb and everywhere_mb + more_mb > self.all_mb:
            return because(Code.DISK_QUEUE, key="disk_queue.all_mb", most=self.all_mb)
        return None
