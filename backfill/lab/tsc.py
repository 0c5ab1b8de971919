"""How many times a second this processor's time stamp counter counts, which QEMU shows its guests.

A guest that finds that out by itself compares the counter with a timer of QEMU's. Where it is kept
from its processor in the middle of that, it may be wrong by a factor of ten and more; then its clock
runs as much too fast, and Slurm believes nothing that it says.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from backfill.lab.spec import cache_root

# rdtsc; shl rdx, 32; or rax, rdx; ret
_READ_COUNTER = bytes.fromhex("0f31 48c1e220 4809d0 c3")
_BETWEEN_S, _LOOKS = 0.1, 50


@functools.cache
def khz() -> int:
    """Return counts per millisecond, in whole thousands; 0 where there is no such counter.

    Measured once per start of this machine: whoever compares command lines shall find the same.
    """
    if platform.machine() != "x86_64":
        return 0
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = cache_root() / f"tsc-{boot}"
    with suppress(OSError, ValueError):
        return int(note.read_text())
    found = _measured_khz()
    with suppress(OSError):  # for others; who may not write there measures again
        fresh = note.with_name(f"{note.name}.{os.getpid()}")
        fresh.write_text(str(found))
        fresh.rename(note)
    return found


def _measured_khz() -> int:
    code = mmap.mmap(-1, len(_READ_COUNTER), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(_READ_COUNTER)
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(place)
    began_ns, began = _together(counter)
    time.sleep(_BETWEEN_S)
    ended_ns, ended = _together(counter)
    return round((ended - began) / (ended_ns - began_ns) * 1000) * 1000


def _together(counter: Callable[[], int]) -> tuple[int, int]:
    """Return a time and the counter at that time: of several looks the one that took least."""
    looks = []
    for _ in range(_LOOKS):
        before_ns, counted, after_ns = time.monotonic_ns(), counter(), time.monotonic_ns()
        looks.append((after_ns - before_ns, (before_ns + after_ns) // 2, counted))
    _, at_ns, counted = min(looks)
    return at_ns, counted
