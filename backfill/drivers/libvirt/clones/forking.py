"""The emulator's part of an instant clone: freeze a parent into files, let a clone go on from them.

The parent's memory is a file that it writes through; everything else of its state is half a
megabyte. A clone maps the same file privately, so it shares each page until it changes it. QEMU
calls this "x-ignore-shared": a state without the memory that both sides can see anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import libvirt

from backfill.drivers.libvirt.connection.domains import weight_of
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.connection.monitor import Monitor, MonitorError, monitor_of
from backfill.ports.errors import DriverError, RefusedError

_Answer = TypeVar("_Answer")
_LOOK_EVERY_S = 0.005
_NO_WORDS = "lets QEMU run no commands of its own"


def freeze(hypervisor: Hypervisor, name: str, state: Path, limit_s: float) -> None:
    """Stop a parent for ever and write its state, without memory, to `state` on its host."""

    def work(domain: Any) -> None:
        domain.suspend()
        ask = monitor_of(domain)
        _without_memory(ask, True)
        ask("migrate", {"uri": f"exec:cat >'{state}'"})
        _await_end(ask, name, hypervisor.host, limit_s)

    _named(name, lambda: hypervisor.run(name, work, limit_s + 5))


def fork(hypervisor: Hypervisor, name: str, state: Path, limit_s: float) -> int | None:
    """Start a defined clone from its parent's state; returns its CPU weight as `start` does."""

    def work(domain: Any) -> int | None:
        domain.createWithFlags(libvirt.VIR_DOMAIN_START_PAUSED)
        weight = weight_of(domain)
        ask = monitor_of(domain)
        _without_memory(ask, True)
        # Its parent's card would be announced to the network, five times: work for the guest.
        ask("migrate-set-parameters", {"announce-rounds": 0})
        ask("migrate-incoming", {"uri": f"exec:cat '{state}'"})
        _await_end(ask, name, hypervisor.host, limit_s)
        _without_memory(ask, False)  # or nobody could restore what is saved of it later
        ask("migrate-set-parameters", {"announce-rounds": 5})
        domain.resume()
        return weight

    def call() -> int | None:
        weight: int | None = hypervisor.run(name, work, limit_s + 5)
        return weight

    return _named(name, call)


def _without_memory(ask: Monitor, on: bool) -> None:
    capability = {"capability": "x-ignore-shared", "state": on}
    ask("migrate-set-capabilities", {"capabilities": [capability]})


def _await_end(ask: Monitor, name: str, host: str, limit_s: float) -> None:
    """Wait until the state has gone through."""
    deadline_s = time.monotonic() + limit_s
    while (seen := ask("query-migrate", {})).get("status") != "completed":
        if seen.get("status") in ("failed", "cancelled"):
            why = seen.get("error-desc", "it does not say why")
            raise DriverError(name, f"QEMU on {host} could not hand over its state: {why}")
        if time.monotonic() > deadline_s:
            raise DriverError(name, f"QEMU on {host} did not hand over its state in {limit_s:g} s")
        time.sleep(_LOOK_EVERY_S)


def _named(name: str, call: Callable[[], _Answer]) -> _Answer:
    try:
        return call()
    except MonitorError as error:
        if "exec" in str(error) or "fork" in str(error):
            raise RefusedError(
                name,
                f"the host's libvirt {_NO_WORDS}: {error}",
                "set seccomp_sandbox = 0 in its qemu.conf, or choose another clone method",
            ) from error
        raise DriverError(name, f"QEMU refused: {error}") from error
