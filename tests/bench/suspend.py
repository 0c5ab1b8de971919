"""Suspend and restore: MB/s of memory to disk and back, against the disk's own rate.

A guest of 3 GB, 2 GB of it filled with noise, on hosts with the hypervisor BACKFILL_HYPERVISOR
(`debian-12` if not given, or `debian-13`). The disk's own rate, in the same run: the same
number of bytes written in pieces of 1 MiB into the same directory, flushed, and read again; before
every reading the pages of the file are dropped from the cache. `eight_*`: eight small guests that
are suspended all at once and two at a time, mean seconds until one is on disk. One line of JSON
comes last; medians.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from backfill.core.model.fleet import Flavour
from backfill.lab.spec import HYPERVISORS
from tests.bench.rig import result
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "5"))
HYPERVISOR = os.environ.get("BACKFILL_HYPERVISOR", HYPERVISORS[0])
NAME = "vn1"
_MB = 1_000_000
_PIECE = b"\xa5" * (1 << 20)
_COPIES, _COPY = 5, 400 << 20
_NOISE = (
    "mount -o remount,size=2900m /dev/shm; cd /dev/shm;"
    f" dd if=/dev/urandom of=noise1 bs=1M count={_COPY >> 20} 2>/dev/null;"
    f" for n in $(seq 2 {_COPIES}); do cp noise1 noise$n; done; du -bc noise* | tail -n 1"
)


def one_round(rig: LibvirtRig, host: str) -> dict[str, float]:
    """Suspend and restore once, then let the disk do the same by itself; MB/s."""
    began_s = time.monotonic()
    rig.provider.suspend(host, NAME)
    wrote_s = time.monotonic() - began_s
    image = rig.provider._pool.store.memory(NAME)
    size = image.stat().st_blocks * 512
    _forget(image)
    began_s = time.monotonic()
    rig.provider.restore(host, NAME)
    read_s = time.monotonic() - began_s
    rig.provider.thaw(host, NAME)
    rate = {"write_mb_s": size / _MB / wrote_s, "read_mb_s": size / _MB / read_s}
    return {**rate, "size_mb": size / _MB, **_disk(image.with_name("disk-rate"), size)}


def _disk(path: Path, size: int) -> dict[str, float]:
    began_s = time.monotonic()
    with path.open("wb", buffering=0) as out:
        for _ in range(size // len(_PIECE)):
            out.write(_PIECE)
        os.fdatasync(out.fileno())
    wrote_s = time.monotonic() - began_s
    _forget(path)
    began_s = time.monotonic()
    with path.open("rb", buffering=0) as source:
        while source.read(len(_PIECE)):
            pass
    read_s = time.monotonic() - began_s
    path.unlink()
    return {"disk_write_mb_s": size / _MB / wrote_s, "disk_read_mb_s": size / _MB / read_s}


def _forget(path: Path) -> None:
    """Have the file on disk and nowhere else."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def eight(rig: LibvirtRig, host: str, at_once: int) -> float:
    """Mean seconds until one of eight guests is on disk; the same as the daemon's queue does."""
    turns, ends = threading.Semaphore(at_once), []
    began_s = time.monotonic()

    def save(name: str) -> None:
        with turns:
            rig.provider.suspend(host, name)
        ends.append(time.monotonic() - began_s)

    names = [f"vn{number}" for number in range(2, 10)]
    threads = [threading.Thread(target=save, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        rig.provider.restore(host, name)
    return mean(ends)


def main() -> int:
    """TRIALS rounds after one that warms up."""
    figures: dict[str, list[float]] = defaultdict(list)
    with running_lab("bench-suspend", HYPERVISOR) as lab:
        rig = LibvirtRig(lab)
        host = rig.provider.hosts[0]
        rig.provider.create(replace(spec(rig, NAME), flavour=Flavour(1, 3072, disk_gb=1)))
        rig.booted(NAME)
        filled = rig.in_guest(host, NAME, _NOISE).strip()
        assert filled.split()[:1] == [str(_COPIES * _COPY)], f"the guest could not fill its memory: {filled}"
        for trial in range(TRIALS + 1):
            found = one_round(rig, host)
            print(f"round {trial} of {TRIALS}: {found}", file=sys.stderr)
            for key, value in found.items() if trial else ():
                figures[key].append(value)
        rig.provider.delete(host, NAME)
        for number in range(2, 10):  # one by one: eight that boot at once take minutes
            rig.provider.create(spec(rig, f"vn{number}"))
            rig.booted(f"vn{number}")
        for _ in range(3):
            for at_once in (8, 2):
                figures[f"eight_at_once_{at_once}_s"].append(eight(rig, host, at_once))
        rig.end()
    medians = {key: round(median(values), 3) for key, values in figures.items()}
    share = {
        "write_share": round(medians["write_mb_s"] / medians["disk_write_mb_s"], 3),
        "read_share": round(medians["read_mb_s"] / medians["disk_read_mb_s"], 3),
    }
    result(benchmark="suspend", hypervisor=HYPERVISOR, trials=TRIALS, **medians, **share)
    return 0


if __name__ == "__main__":
    sys.exit(main())
