"""One real guest in which a program counts, and small words for what is done to it."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from backfill.core.model.fleet import Instance, InstanceState
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.ports.errors import BusyError, DriverError
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import PATIENCE_S, LibvirtRig

NAME = "vn1"
IN_MEMORY = (InstanceState.RUNNING, InstanceState.PAUSED)


class Guest:
    """The one counting guest, wherever it is."""

    def __init__(self, rig: LibvirtRig) -> None:
        self.rig, self.provider = rig, rig.provider

    def seen(self) -> list[Instance]:
        found = [self.provider.read(host, NAME) for host in self.provider.hosts]
        return [instance for instance in found if instance is not None]

    @property
    def host(self) -> str:
        (instance,) = self.seen()
        return instance.host

    @property
    def other(self) -> str:
        (host,) = set(self.provider.hosts) - {self.host}
        return host

    @property
    def state(self) -> InstanceState:
        (instance,) = self.seen()
        return instance.state

    def put(self, state: InstanceState) -> None:
        """Bring it from RUNNING into this state."""
        if state is InstanceState.PAUSED:
            self.provider.pause(self.host, NAME)
        if state is InstanceState.SUSPENDED:
            self.provider.suspend(self.host, NAME)
        assert self.state is state

    def run_on(self) -> None:
        """Bring it back to RUNNING from whatever state, and see the counter go on."""
        if self.state is InstanceState.SUSPENDED:
            self.provider.restore(self.host, NAME)
        if self.state is InstanceState.PAUSED:
            self.provider.thaw(self.host, NAME)
        assert self.state is InstanceState.RUNNING
        self.rig.goes_on(NAME)


def counting_guest(rig: LibvirtRig) -> Guest:
    """The guest that an earlier test left running, or a fresh one."""
    rig.revive_all()  # after a test that failed in between
    made = Guest(rig)
    counts = rig.counts(NAME)
    whole = bool(counts) and counts == list(range(1, len(counts) + 1))
    if not whole or [instance.state for instance in made.seen()] != [InstanceState.RUNNING]:
        for host in rig.provider.hosts:
            rig.provider.delete(host, NAME)
        rig.provider.create(spec(rig, NAME))
        rig.booted(NAME)
        rig.start_counter(rig.provider.hosts[0], NAME)
    return made


def in_background(work: Callable[[], object]) -> Future[None]:
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=run, daemon=True).start()
    return future


def strike_a_move(guest: Guest, victim: str) -> None:
    """Kill one of those at work in the middle of a move, and wait until one host has the guest."""
    rig, source, target = guest.rig, guest.host, guest.other
    # Slowly, so that it is under way for certain when the blow falls: an emulator that the guest
    # has come to already would take it along.
    terms = MoveTerms(bandwidth_mb_s=8, live=True)
    slow = LibvirtProvider(replace(rig.config, moves=terms), lambda *event: None)
    moving = in_background(lambda: slow.migrate(source, NAME, target))
    rig.until(lambda: guest.provider.read(target, NAME) is not None)
    if victim == "target emulator":
        os.kill(rig.qemu_pid(target, NAME), signal.SIGKILL)
    else:
        rig.kill_libvirtd(source if victim.startswith("source") else target)
    failure = moving.exception(PATIENCE_S)
    slow.close()
    assert failure is None or isinstance(failure, DriverError)
    for host in (source, target):
        if not rig.lab.status().machines[host].services["libvirtd"]:
            rig.revive_libvirtd(host)
    rig.until(lambda: len(guest.seen()) == 1 and guest.state in IN_MEMORY)


def patiently(work: Callable[[], object], limit_s: float = PATIENCE_S) -> None:
    """Repeat what is refused for the moment, as the engine does in its cycles."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            work()
        except BusyError:
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        else:
            return
