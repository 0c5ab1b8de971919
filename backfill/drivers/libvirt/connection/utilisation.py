"""Measures how busy a host's CPUs are, by the counters of its libvirtd."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import libvirt

# Shorter spans say more about chance than about the host.
_SPAN_NS = 1_000_000_000


class CpuMeter:
    """The share of a host's CPU time that was used between two looks, 0 to 1."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: tuple[int, int] | None = None  # used and all, ns
        self.busy: float | None = None  # None: not known yet, or not told by this host

    def look(self, connection: Any) -> None:
        """Read the counters; looks that follow one another closely count as one."""
        times: dict[str, int] = {}
        with contextlib.suppress(libvirt.libvirtError):  # a driver that does not count
            times = connection.getCPUStats(libvirt.VIR_NODE_CPU_STATS_ALL_CPUS)
        if times:
            every = sum(times.get(kind, 0) for kind in ("kernel", "user", "idle", "iowait"))
            self.take(times.get("kernel", 0) + times.get("user", 0), every)

    def take(self, used_ns: int, all_ns: int) -> None:
        """Take in the counters as they are now."""
        with self._lock:
            before = self._before
            if before is None or all_ns < before[1]:  # at first, and after the host booted anew
                self._before = (used_ns, all_ns)
            elif all_ns - before[1] >= _SPAN_NS:
                share = (used_ns - before[0]) / (all_ns - before[1])
                self.busy = round(min(1.0, max(0.0, share)), 2)
                self._before = (used_ns, all_ns)
