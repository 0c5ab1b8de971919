"""Devices of simulated instances: allocated by the same rule, plugged into nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

from backfill.core.model.devices import Holding, Sharing, VirtualFunction, Wanted, allocate
from backfill.core.model.fleet import Host, Instance, InstanceState
from backfill.core.model.refusals import Reason
from backfill.core.model.sentences import sentence
from backfill.drivers.simulated.hypervisor.hardware import SimHost, SimInstance
from backfill.ports.errors import BusyError, NoCapacityError, NotFoundError, RefusedError


class SimulatedHolder:
    """See `DeviceHolder`. `functions`: virtual functions of all hosts, for a test to fill."""

    _call: Callable[..., AbstractContextManager[SimHost]]
    _cluster: str

    def __init__(self) -> None:
        self.functions: list[VirtualFunction] = []
        self.plugged: dict[str, str] = {}  # instance -> host whose devices are in its guest
        self.hooks: list[tuple[str, str, str]] = []  # what guests were told: host, name, when
        self._held: dict[str, Holding] = {}
        self._secrets = 0

    def virtual_functions(self, host: str) -> tuple[VirtualFunction, ...]:
        """Those of one host."""
        return tuple(f for f in self.functions if f.host == host)

    def holdings(self) -> tuple[Holding, ...]:
        """Return the holdings of all instances."""
        return tuple(self._held.values())

    def hold(self, wanted: Wanted, sharing: Sharing) -> Holding:
        """Allocate and plug."""
        with self._call("hold", wanted.host, wanted.instance) as host:
            if wanted.instance not in host.instances:
                raise NotFoundError(wanted.instance, f"{wanted.host} has no such instance of ours")
            known = self._held.get(wanted.instance)
            if known is None or known.job != wanted.job or known.host == wanted.host:
                self._allocate(wanted, sharing)
        self.plug(wanted.host, wanted.instance)
        return self._held[wanted.instance]

    def _allocate(self, wanted: Wanted, sharing: Sharing) -> None:
        self._secrets += 1
        given = allocate(
            wanted, self.functions, self._held.values(), sharing, self._cluster, str(self._secrets)
        )
        if isinstance(given, Reason):
            raise NoCapacityError(wanted.instance, sentence(given))
        self._held[wanted.instance] = given

    def give_back(self, host: str, name: str) -> None:
        """Unplug and forget."""
        with self._call("give_back", host, name):
            self.plugged.pop(name, None)
            self._held.pop(name, None)

    def unplug(self, host: str, name: str) -> None:
        """Out of a running guest."""
        with self._call("unplug", host, name) as found:
            if self.plugged.get(name) == host:
                self._need_running(found, name)
                del self.plugged[name]
                self._held[name] = replace(self._held[name], plugged=False)

    def plug(self, host: str, name: str) -> None:
        """Into a running guest; on another host other functions."""
        with self._call("plug", host, name) as found:
            old = self._held.get(name)
            if old is None:
                return
            self._need_running(found, name)
            if old.host != host:
                del self._held[name]
                self._allocate(old.wanted_on(host), Sharing.ANYONE)
            self.plugged[name] = host
            self._held[name] = replace(self._held[name], plugged=True)

    def room_for(self, host: str, name: str) -> str | None:
        """Return why `host` could not give it the same, if it could not."""
        old = self._held.get(name)
        if old is None or old.host == host:
            return None
        others = [h for h in self._held.values() if h.instance != name]
        given = allocate(old.wanted_on(host), self.functions, others, Sharing.ANYONE, self._cluster, "")
        return sentence(given) if isinstance(given, Reason) else None

    def _shown(self, instance: SimInstance) -> Instance:
        """As anybody sees it, with what it holds."""
        seen, held = instance.view(), self._held.get(instance.spec.name)
        if held is None:
            return seen
        return replace(
            seen,
            devices_of=held.job,
            plugged=held.plugged,
            functions=len(held.functions),
            region_mb=held.region_mb,
        )

    def _with_functions(self, host: SimHost) -> Host:
        """As anybody sees it, with the functions of its cards."""
        functions = len(self.virtual_functions(host.name))
        return replace(host.view(), functions=functions) if functions else host.view()

    def hook(self, host: str, name: str, when: str) -> None:
        """Note that the guest was told."""
        with self._call("hook", host, name) as found:
            self._need_running(found, name)
            self.hooks.append((host, name, when))

    def _refuse_if_plugged(self, host: str, name: str) -> None:
        if self.plugged.get(name) == host:
            raise RefusedError(name, "devices are plugged into its guest, whose memory cannot be written")

    def _need_running(self, host: SimHost, name: str) -> None:
        instance = host.instances.get(name)
        if instance is None:
            raise NotFoundError(name, f"{host.name} has no such instance of ours")
        if instance.state is not InstanceState.RUNNING:
            raise BusyError(name, f"it is {instance.state}; devices need a running guest")
