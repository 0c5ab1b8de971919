"""One real guest in which a program counts, and small words for what is done to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from backfill.core.fleet import Instance, InstanceState
from backfill.ports import BusyError
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
